"""Environments outside the repository, each with one MindSpore version and this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

MINDSPORE_VERSIONS = ("2.7.2", "2.8.0", "2.9.0")
DIRECTORY_VARIABLE = "KFP_MINDSPORE_MATRIX"
ROOT = Path(__file__).parents[2]
# What `kfp-mindspore demo` imports.
EXTRAS = "data,pipelines,serving,train"


def install_mindspore(version: str) -> Path:
    """Create or update the environment of a MindSpore version, with the other packages at the tested versions.

    `pyproject.toml` must admit the version: nothing overrides its requirements.

    Args:
        version: A published version, such as `2.8.0`.

    Returns:
        The environment's directory of commands.
    """
    default = Path.home() / ".cache" / "kfp-mindspore" / "matrix"
    directory = Path(os.environ.get(DIRECTORY_VARIABLE, default)) / f"mindspore-{version}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    constraints = directory.with_suffix(".constraints.txt")
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    constraints.write_text(re.sub(r"(?m)^mindspore==.*$", f"mindspore=={version}", tested), encoding="utf-8")
    python = directory / "bin" / "python"
    if not python.exists():
        _run_uv("venv", "--python", sys.executable, directory)
    _run_uv("pip", "install", "--python", python, "--constraint", constraints, "--editable", f"{ROOT}[{EXTRAS}]")
    return python.parent


def _run_uv(*words: str | Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    done = subprocess.run([uv, "--quiet", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
