"""API servers of other Kubernetes versions than the pinned one, beside the pinned etcd and controllers."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.cluster.infrastructure.binaries import KUBERNETES, Program, Toolset, call_go
from tests.cluster.infrastructure.paths import INFRASTRUCTURE, get_cache, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError, check_go

VERSION_VARIABLE = "KFP_MINDSPORE_TEST_KUBERNETES"
# A minor version alone is emulated by the pinned server. Go's module proxy lacks libraries of 1.33.6 and 1.32.10.
VERSIONS = ("1.36.0", "1.35.0", "1.34.4", "1.33", "1.32", "1.31.14")
_PINNED = INFRASTRUCTURE / "kubernetes" / "go.mod"
_PACKAGE = "k8s.io/kubernetes/cmd/kube-apiserver"


def select_toolset() -> Toolset:
    """Return the toolset with the API server that the environment names, by default the pinned one.

    Raises:
        UnavailableError: It was never built.
    """
    version = os.environ.get(VERSION_VARIABLE, "")
    if not version or has_pinned_binaries(version):
        return KUBERNETES
    if not _get_folder(version).exists():
        raise UnavailableError(f"Kubernetes {version}: not built; run `python -m tests.cluster matrix {version}`")
    return _list_programs(version)


def lock_toolset(version: str) -> Toolset:
    """Return the toolset with an API server, to be built.

    All versions follow from Kubernetes' own go.mod. Go adds the modules' sums once, as its checksum database has them.

    Raises:
        UnavailableError: Go is missing.
        RuntimeError: Go did not find a module; the message holds the end of its output.
    """
    if has_pinned_binaries(version):
        return KUBERNETES
    folder = _get_folder(version)
    if not folder.exists():
        check_go()
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        release = call_go(["list", "-m", "-f", "{{.GoMod}}", f"k8s.io/kubernetes@v{version}"], make_directory(partial))
        (partial / "go.mod").write_text(derive_module(Path(release.strip()).read_text(), version))
        call_go(["list", "-mod=mod", "-deps", _PACKAGE], partial)
        partial.rename(folder)
    return _list_programs(version)


def derive_module(release: str, version: str) -> str:
    """Return a go.mod that requires Kubernetes, its libraries as modules instead of folders of its repository."""
    language = re.findall(r"^go \S+$", release, re.MULTILINE)
    libraries = re.findall(r"^\s*(\S+) => \./staging/", release, re.MULTILINE)
    replaced = [f"replace {name} => {name} v{version.replace('1', '0', 1)}" for name in libraries]
    required = f"require k8s.io/kubernetes v{version}"
    return "\n".join(["module kfp-mindspore.test/kubernetes", *language, required, *replaced]) + "\n"


def list_version_flags() -> list[str]:
    """Return the API server's flags for the version that the environment names."""
    version = os.environ.get(VERSION_VARIABLE, "")
    return [f"--emulated-version={version}"] if is_emulated(version) else []


def is_emulated(version: str) -> bool:
    """Return whether this is a minor version alone, such as `1.33`."""
    return version.count(".") == 1


def has_pinned_binaries(version: str) -> bool:
    """Return whether the programs are those of every other test."""
    return is_emulated(version) or f"k8s.io/kubernetes v{version} " in _PINNED.read_text()


def _get_folder(version: str) -> Path:
    return get_cache() / f"kubernetes-{version}"


def _list_programs(version: str) -> Toolset:
    return Toolset({"kube-apiserver": Program(str(_get_folder(version)), _PACKAGE)})
