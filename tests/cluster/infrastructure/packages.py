"""Python packages for pods: dependencies, installed once per set of pins, and the project, installed once per run.

Pods of the Python image mount them read-only, which saves an image of 2 GB.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.infrastructure.commands import call
from tests.cluster.infrastructure.paths import ROOT, compute_digest, get_cache, lock, make_directory
from tests.cluster.infrastructure.prerequisites import UnavailableError

EXTRAS = (
    "artifacts", "data", "pipelines", "train", "serving", "storage", "operator", "images", "kubernetes", "lm", "mindcv",
    "workloads",
)  # fmt: skip
_UV = str(Path(sys.executable).with_name("uv"))
_PYTHON_VERSION = "3.11"
_SOURCES = ("kfp_mindspore", "components", "pipelines", "serving")
_FILES = ("pyproject.toml", "README.md", "LICENSE", "kfp_mindspore_cli.py")
_DEPENDENCIES, _PROJECT = "/opt/dependencies", "/opt/project"
# The project first: it is under test.
ENVIRONMENT = {"PYTHONPATH": f"{_PROJECT}:{_DEPENDENCIES}", "HOME": "/tmp", "GLOG_v": "3", "OMP_NUM_THREADS": "1"}


class ImagePackages:
    """Packages that pods have from their image: nothing is mounted."""

    @property
    def volumes(self) -> list[dict[str, Any]]:
        """Entries of a pod's `volumes`."""
        return []

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """Entries of a container's `volumeMounts`."""
        return []

    @property
    def environment(self) -> list[dict[str, Any]]:
        """Entries of a container's `env`."""
        return []

    def add_to(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a pod's `spec` with the packages in every container."""
        containers = [
            {
                **container,
                "env": [*self.environment, *container.get("env", [])],
                "volumeMounts": [*self.mounts, *container.get("volumeMounts", [])],
            }
            for container in pod["containers"]
        ]
        return {**pod, "containers": containers, "volumes": [*self.volumes, *pod.get("volumes", [])]}


@dataclass(frozen=True)
class PodPackages(ImagePackages):
    """Directories that pods of the Python image mount to run the project and MindSpore.

    Args:
        dependencies: Directory of the dependencies on the node.
        project: Directory of the project on the node.
    """

    dependencies: Path
    project: Path

    @property
    def volumes(self) -> list[dict[str, Any]]:
        """Entries of a pod's `volumes`."""
        pairs = (("dependencies", self.dependencies), ("project", self.project))
        return [{"name": name, "hostPath": {"path": str(path), "type": "Directory"}} for name, path in pairs]

    @property
    def mounts(self) -> list[dict[str, Any]]:
        """Entries of a container's `volumeMounts`."""
        pairs = (("dependencies", _DEPENDENCIES), ("project", _PROJECT))
        return [{"name": name, "mountPath": path, "readOnly": True} for name, path in pairs]

    @property
    def environment(self) -> list[dict[str, Any]]:
        """Entries of a container's `env`."""
        return [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]


def get_dependencies() -> Path:
    """Return the directory of the dependencies.

    Raises:
        UnavailableError: They are not installed.
    """
    directory = _locate()
    if not directory.exists():
        raise UnavailableError(f"{directory}: not installed; run `python -m tests.cluster build`")
    return directory


def install_dependencies() -> Path:
    """Install the dependencies for the image's Python, in two minutes, unless installed; return the directory.

    Raises:
        RuntimeError: uv failed; the message holds its errors.
    """
    directory = _locate()
    with lock(directory.with_suffix(".lock")):
        if not directory.exists():
            partial = directory.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            extras = [word for extra in EXTRAS for word in ("--extra", extra)]
            install_python_packages(
                partial, "--requirement", str(ROOT / "pyproject.toml"), *extras, "--compile-bytecode"
            )
            make_directory(partial).replace(directory)
    return directory


def install_project(directory: Path) -> PodPackages:
    """Build the wheel of the working tree, install it into a directory and return the packages.

    Raises:
        UnavailableError: The dependencies are not installed.
        RuntimeError: uv failed; the message holds its errors.
    """
    dependencies = get_dependencies()
    with tempfile.TemporaryDirectory() as temporary:
        # A copy: setuptools would include files of an earlier build in the source tree.
        source, wheels = Path(temporary, "source"), Path(temporary, "wheels")
        source.mkdir()
        for name in _FILES:
            shutil.copyfile(ROOT / name, source / name)
        for name in _SOURCES:
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        call(
            _UV,
            "build",
            "--quiet",
            "--wheel",
            "--python",
            sys.executable,
            "--out-dir",
            str(wheels),
            str(source),
            seconds=None,
        )
        (wheel,) = wheels.glob("*.whl")
        install_python_packages(directory, "--no-deps", str(wheel))
    return PodPackages(dependencies, make_directory(directory))


def _locate() -> Path:
    text = (ROOT / "pyproject.toml").read_text()
    wanted = [
        found for extra in EXTRAS for found in re.findall(rf"^{extra} = \[.*?\]$", text, re.DOTALL | re.MULTILINE)
    ]
    return get_cache() / f"packages-{compute_digest([ROOT / 'constraints.txt'], _PYTHON_VERSION, *wanted)}"


def install_python_packages(target: Path, *words: str) -> None:
    """Install packages for the image's Python with the versions of constraints.txt.

    Args:
        target: Their directory.
        words: Requirements and options of `uv pip install`.

    Raises:
        RuntimeError: uv failed; the message holds its errors.
    """
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    where = ["--target", str(target), "--python", sys.executable, "--python-version", _PYTHON_VERSION]
    call(_UV, "pip", "install", "--quiet", *where, *constraints, *words, seconds=None)
