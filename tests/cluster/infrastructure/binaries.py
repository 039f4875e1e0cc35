"""Kubernetes and what the tests run beside it, built with Go from the modules that go.mod files pin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.infrastructure.paths import INFRASTRUCTURE, compute_digest, find_cache, lock, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError, check_go

COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
NAMES = (*COMPONENTS, "etcd", "coredns", "pause")
BUILDKIT_NAMES = ("buildkitd", "buildctl", "buildctl-daemonless.sh", "docker-buildx")
COSCHEDULING_NAMES = ("kube-scheduler-coscheduling", "podgroups.yaml")
_MODULES = tuple(INFRASTRUCTURE / name for name in ("kubernetes", "coredns", "pause"))
_BUILDKIT = INFRASTRUCTURE / "buildkit"
_COSCHEDULING = INFRASTRUCTURE / "coscheduling"


def find_binaries() -> Path:
    """Return the directory of the binaries.

    Raises:
        UnavailableError: They are not built yet.
    """
    return _find(_locate(_MODULES), NAMES, "13 minutes at first")


def find_buildkit() -> Path:
    """Return the directory of BuildKit: the daemon, its client, the script that runs both, and Docker's plugin.

    Raises:
        UnavailableError: They are not built yet.
    """
    return _find(_locate([_BUILDKIT]), BUILDKIT_NAMES, "5 minutes at first")


def find_coscheduling() -> Path:
    """Return the directory of scheduler-plugins' scheduler, with the definition of its PodGroups.

    Raises:
        UnavailableError: They are not built yet.
    """
    return _find(_locate([_COSCHEDULING]), COSCHEDULING_NAMES, "3 minutes at first")


def build_binaries() -> Path:
    """Build what is missing, and return the directory of the binaries.

    Nothing is fetched but what go.sum names. About 13 minutes on two cores at first, 3 GB of Go's build cache; a
    minute when that cache is warm.

    Raises:
        UnavailableError: Go is missing.
        RuntimeError: The build failed; the message has the end of its output.
    """
    directory = make_directory(_locate(_MODULES))
    with lock(directory.with_suffix(".lock")):
        if all((directory / name).exists() for name in NAMES):
            return directory
        check_go()
        kubernetes, coredns, pause = _MODULES
        version = _call_go(["list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"], kubernetes).strip()
        for name in COMPONENTS:
            _build(directory / name, f"k8s.io/kubernetes/cmd/{name}", kubernetes, _list_version_flags(version))
        _build(directory / "etcd", "go.etcd.io/etcd/server/v3", kubernetes)
        _build(directory / "coredns", ".", coredns)
        _build(directory / "pause", ".", pause)
    return directory


def build_buildkit() -> Path:
    """Build BuildKit when it is missing, and return the directory of its programs.

    Raises:
        UnavailableError: Go is missing.
        RuntimeError: The build failed; the message has the end of its output.
    """
    directory = make_directory(_locate([_BUILDKIT]))
    daemon, client, script, plugin = BUILDKIT_NAMES
    with lock(directory.with_suffix(".lock")):
        if all((directory / name).exists() for name in BUILDKIT_NAMES):
            return directory
        check_go()
        for name in (daemon, client):
            _build(directory / name, f"github.com/moby/buildkit/cmd/{name}", _BUILDKIT)
        _build(directory / plugin, "github.com/docker/buildx/cmd/buildx", _BUILDKIT)
        source = _find_module("github.com/moby/buildkit", _BUILDKIT) / "examples" / "buildctl-daemonless" / script
        _copy(source, directory / script, 0o755)
    return directory


def build_coscheduling() -> Path:
    """Build scheduler-plugins' scheduler when it is missing, and return its directory.

    Raises:
        UnavailableError: Go is missing.
        RuntimeError: The build failed; the message has the end of its output.
    """
    directory = make_directory(_locate([_COSCHEDULING]))
    scheduler, definition = COSCHEDULING_NAMES
    with lock(directory.with_suffix(".lock")):
        if all((directory / name).exists() for name in COSCHEDULING_NAMES):
            return directory
        check_go()
        _build(directory / scheduler, ".", _COSCHEDULING)
        module = _find_module("sigs.k8s.io/scheduler-plugins", _COSCHEDULING)
        definitions = module / "config" / "crd" / "bases"
        _copy(definitions / f"scheduling.x-k8s.io_{definition}", directory / definition, 0o644)
    return directory


def _locate(modules: Sequence[Path]) -> Path:
    files = [file for module in modules for file in module.iterdir() if file.suffix in {".go", ".mod", ".sum"}]
    return find_cache() / f"bin-{compute_digest(files)}"


def _find(directory: Path, names: Sequence[str], minutes: str) -> Path:
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise UnavailableError(
            f"{directory}: {', '.join(missing)} not built; run `python -m tests.cluster build` ({minutes})"
        )
    return directory


def _list_version_flags(version: str) -> list[str]:
    major, minor, _ = version.removeprefix("v").split(".", 2)
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "module",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]


def _build(output: Path, package: str, module: Path, flags: Sequence[str] = ()) -> None:
    if output.exists():
        return
    started = time.monotonic()
    partial = output.with_name(f".{output.name}.partial")
    linker = " ".join(["-s", "-w", *flags])
    _call_go(["build", "-mod=readonly", "-trimpath", "-ldflags", linker, "-o", str(partial), package], module)
    partial.replace(output)
    print(f"built {output.name} in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _find_module(name: str, module: Path) -> Path:
    """Return where Go keeps the files of a module that another one requires."""
    return Path(_call_go(["list", "-m", "-f", "{{.Dir}}", name], module).strip())


def _copy(source: Path, target: Path, mode: int) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(source, partial)
    partial.chmod(mode)
    partial.replace(target)


def _call_go(arguments: Sequence[str], module: Path) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(
        ["go", *arguments],
        cwd=module,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"go {' '.join(arguments[:2])} in {module} failed:\n{done.stderr[-4000:]}")
    return done.stdout
