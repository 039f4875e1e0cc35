"""An image of the operator for a node: Debian's Python, the extra `operator` and the project as it is here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.cluster.infrastructure.images import PYTHON, ImageConfig, get_images, write_archive
from tests.cluster.infrastructure.packages import PodPackages
from tests.cluster.infrastructure.paths import ROOT

_PYTHON_VERSION = "3.11"
_HOME = "opt/kfp-mindspore"
_COMMAND = "#!/usr/bin/python3\nimport sys\n\nfrom kfp_mindspore.cli.main import main\n\nsys.exit(main())\n"


def write_operator_image(name: str, archive: Path, packages: PodPackages) -> None:
    """Write the image as an archive that a node imports.

    Args:
        name: Its name with its tag.
        archive: The archive.
        packages: Where the project is laid out.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        root = Path(directory)
        # The root directory of a container must be accessible to any user.
        root.chmod(0o755)
        _unpack(get_images()[PYTHON], root)
        _install_dependencies(root / _HOME)
        shutil.copytree(packages.project, root / _HOME, dirs_exist_ok=True)
        command = root / "usr/local/bin/kfp-mindspore"
        command.write_text(_COMMAND)
        command.chmod(0o755)
        write_archive(name, root, archive, ImageConfig(environment=[f"PYTHONPATH=/{_HOME}"]))


def _unpack(archive: Path, root: Path) -> None:
    """Lay out an image of one layer."""
    with tarfile.open(archive) as image:
        manifest = image.extractfile("manifest.json")
        assert manifest is not None
        layer = image.extractfile(json.load(manifest)[0]["Layers"][0])
        with tarfile.open(fileobj=layer) as files:
            files.extractall(root, filter="fully_trusted")


def _install_dependencies(target: Path) -> None:
    words = ["--requirement", str(ROOT / "pyproject.toml"), "--extra", "operator"]
    words += ["--constraint", str(ROOT / "constraints.txt"), "--target", str(target), "--compile-bytecode"]
    words += ["--python", sys.executable, "--python-version", _PYTHON_VERSION]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
