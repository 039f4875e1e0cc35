"""How long does a build take by appending a layer, beside docker build and docker push?

A base image of about 1 GB is made of installed packages and lies in a docker-registry on this machine. Ten small
sources change by one byte; the peer is a Docker daemon of its own (legacy builder) that is asked by docker's SDK.
It needs root, docker.io, docker-registry and busybox-static.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import build_parser, build_target, pair_ratios, print_result, run_in_turn

from kfp_mindspore.images import AppendBuilder, BuildResult, ImageOptions, RegistryConfig, build_image, collect_folder

ROOT = Path(__file__).parents[1]
# The daemon and the registry are started as the tests start them.
sys.path.append(str(ROOT))

if TYPE_CHECKING:
    from tests.support.dockerd import DockerDaemon
    from tests.support.registries import Registry

BASE_BYTES = LARGE_BYTES = 1 << 30
LAYERS = 4
_READ = """
import hashlib, sys, time, zlib
from pathlib import Path

started = time.perf_counter()
digest, packer = hashlib.sha256(), {packer}
for file in sorted(Path(sys.argv[1]).rglob("*")):
    if file.is_file():
        with file.open("rb") as opened:
            while chunk := opened.read(1 << 20):
                digest.update(packer.compress(chunk) if packer else chunk)
print(time.perf_counter() - started)
"""
# What docker does to a layer that it pushes, and half of it.
_COMPRESS_AND_HASH = _READ.format(packer="zlib.compressobj(6)")
_HASH = _READ.format(packer="None")


@dataclass
class Site:
    """What is built, from what, where to and by whom."""

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

    def change(self, folder: Path | None = None) -> None:
        """Change one byte of the sources."""
        self.count += 1
        with ((folder or self.sources) / "train.py").open("r+b") as file:
            file.write(bytes([65 + self.count % 26, 65 + self.count // 26 % 26]))

    def append(self, folder: Path | None = None) -> BuildResult:
        """Build by appending."""
        return build_image(
            collect_folder(folder or self.sources),
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
        """Time a build of what the registry has."""
        self.append()
        started = time.perf_counter()
        result = self.append()
        seconds = time.perf_counter() - started
        assert (result.built, result.sent_bytes) == (False, 0)
        return seconds

    def time_round_trips(self) -> float:
        """Time what an unchanged build asks the registry, and no more: two manifests and two configurations."""
        import requests

        tag = self.append().tag
        asked = [f"bench/base/manifests/{self.base.rpartition(':')[2]}", f"bench/append/manifests/{tag}"]
        started = time.perf_counter()
        for path in asked:
            with requests.Session() as session:
                url = f"http://{self.registry.host}/v2/{path}"
                accept = "application/vnd.oci.image.manifest.v1+json"
                manifest = session.get(url, headers={"Accept": accept}).json()
                session.get(
                    f"{url.partition('/manifests/')[0]}/blobs/{manifest['config']['digest']}"
                ).raise_for_status()
        return time.perf_counter() - started

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
        """Time the same when the daemon does not have the base image."""
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


def list_packages(limit: int) -> Iterator[tuple[str, Path]]:
    """Yield installed files of so many bytes in all: what a base image of this project is full of."""
    place = Path(sysconfig.get_path("purelib"))
    total = 0
    for package in ("mindspore", "numpy", "scipy", "sklearn", "kserve", "kfp", "kubernetes"):
        for file in sorted((place / package).rglob("*")):
            if file.is_file() and not file.is_symlink() and file.suffix != ".pyc":
                total += file.stat().st_size
                if total <= limit:
                    yield file.relative_to(place).as_posix(), file
                else:
                    total -= file.stat().st_size


def make_base(registry: Registry, config: RegistryConfig) -> str:
    """Push the base image, in layers of about the same size."""
    from tests.support.base_images import push_base

    layers: list[dict[str, bytes]] = [{} for _ in range(LAYERS)]
    sizes = [0] * LAYERS
    for path, file in sorted(list_packages(BASE_BYTES), key=lambda found: -found[1].stat().st_size):
        smallest = sizes.index(min(sizes))
        layers[smallest][f"opt/packages/{path}"] = file.read_bytes()
        sizes[smallest] += file.stat().st_size
    layers[0]["etc/os-release"] = b"ID=benchmark\n"
    return push_base(registry.host, "bench/base", "1", config=config, layers=layers)


def make_sources(folder: Path, base: str) -> None:
    """Write ten small sources and the Containerfile of the peer."""
    folder.mkdir()
    for number in range(9):
        (folder / f"module_{number}.py").write_text(f"VALUE = {number}\n" * 200)
    (folder / "train.py").write_text("# some training\n" * 400)
    (folder / "Containerfile").write_text(f"FROM {base}\nWORKDIR /app\nCOPY . /app/\nUSER 1000:1000\n")
    (folder / ".dockerignore").write_text("Containerfile\n.dockerignore\n")


def make_large(folder: Path) -> None:
    """Copy installed packages as sources of 1 GB."""
    for path, file in list_packages(LARGE_BYTES):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / path)
    (folder / "train.py").write_text("# some training\n")


def build_large(folder: str, host: str, base: str) -> None:
    """Append 1 GB of sources and print the seconds and the peak memory of this process in MB."""
    started = time.perf_counter()
    config = RegistryConfig(insecure=(host,))
    result = build_image(collect_folder(folder), f"{host}/bench/large", ImageOptions(base), AppendBuilder(config))
    assert result.layers_sent == 1
    seconds = time.perf_counter() - started
    # getrusage would count what the process that started this one had.
    status = Path("/proc/self/status").read_text()
    print(seconds, int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def measure_large(site: Site, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    """Append 1 GB beside compressing and hashing it, each in a process of its own; return seconds and peak memory."""
    folder = site.root / "large"
    make_large(folder)
    peaks: list[float] = []

    def run(*words: str) -> float:
        done = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True)
        seconds, *peak = (float(word) for word in done.stdout.split())
        peaks.extend(peak)
        return seconds

    def append() -> float:
        site.change(folder)
        return run(str(Path(__file__)), "--large", str(folder), site.registry.host, site.base)

    candidates = {
        "append 1 GB": append,
        "compress and hash": lambda: run("-c", _COMPRESS_AND_HASH, str(folder)),
        "hash": lambda: run("-c", _HASH, str(folder)),
    }
    return run_in_turn(candidates, rounds), peaks


def main() -> None:
    if sys.argv[1:2] == ["--large"]:
        build_large(*sys.argv[2:])
        return
    from tests.support.dockerd import DockerDaemon, find_missing
    from tests.support.registries import start_registry

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
            site = Site(root, registry, daemon, config, base)
            site.time_docker()
            site.time_append()
            raw: dict[str, Any] = run_in_turn(
                {"append": site.time_append, "docker, warm": site.time_docker}, 2 * rounds
            )
            raw.update(
                run_in_turn({"unchanged": site.time_unchanged, "round trips": site.time_round_trips}, 2 * rounds)
            )
            cold = run_in_turn({"append, cold": site.time_append, "docker, cold": site.time_docker_cold}, rounds)
            daemon.stop()
            large, peaks = measure_large(site, rounds)
            raw.update(cold)
            raw.update(large)
            raw["peak memory, MB"] = peaks
    finally:
        daemon.stop()
        shutil.rmtree(root, ignore_errors=True)
    beyond = [ours - theirs for ours, theirs in zip(raw["unchanged"], raw["round trips"], strict=True)]
    print_result(
        "images",
        [
            build_target(
                "docker build + push, warm / append", pair_ratios(raw["docker, warm"], raw["append"]), 3, at_least=True
            ),
            build_target(
                "docker build + push without the base / append",
                pair_ratios(raw["docker, cold"], raw["append, cold"]),
                100,
                at_least=True,
            ),
            build_target("nothing changed, seconds beyond the registry's round trips", beyond, 0.1),
            build_target("1 GB of sources, peak memory in MB", peaks, 100, worst=True),
            build_target(
                "1 GB of sources / compressing and hashing it",
                pair_ratios(raw["append 1 GB"], raw["compress and hash"]),
                1.2,
            ),
            build_target("1 GB of sources / hashing it", pair_ratios(raw["append 1 GB"], raw["hash"])),
        ],
        raw,
    )


if __name__ == "__main__":
    main()
