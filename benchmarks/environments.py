"""Python environments of the peers, each with pinned packages of its own in benchmarks/.environments."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parent / ".environments"


def prepare_environment(requirements: Path | None, *, shared_library: bool = False) -> Path:
    """Return the `bin` directory of an environment, created again when its requirements file changed.

    Args:
        requirements: Requirements file; None for the environment of this process.
        shared_library: Whether its interpreter must have a shared libpython.

    Raises:
        RuntimeError: It cannot be installed, or there is no such interpreter.
    """
    if requirements is None:
        return Path(sys.executable).parent
    directory = ENVIRONMENTS / requirements.stem
    stamp = directory / "installed"
    python = _resolve_shared_python() if shared_library else sys.executable
    digest = hashlib.sha256(requirements.read_bytes() + f"{python} {sys.version}".encode()).hexdigest()
    if not stamp.is_file() or stamp.read_text() != digest:
        print(f"installing {requirements.name} into {directory} …", file=sys.stderr, flush=True)
        shutil.rmtree(directory, ignore_errors=True)
        uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
        for argv in (
            ["venv", "--quiet", "--python", python, str(directory)],
            ["pip", "install", "--quiet", "--python", str(directory / "bin" / "python"), "-r", str(requirements)],
        ):
            done = subprocess.run([uv or "uv", *argv], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"uv {' '.join(argv)} exited with {done.returncode}:\n{done.stderr[-2000:]}")
        stamp.write_text(digest)
    return directory / "bin"


def _resolve_shared_python() -> str:
    check = "import sys, sysconfig; sys.exit(not sysconfig.get_config_var('Py_ENABLE_SHARED') or sys.prefix != '/usr')"
    for version in ("3.10", "3.11", "3.12"):
        for folder in os.environ["PATH"].split(os.pathsep):
            python = Path(folder) / f"python{version}"
            if (
                python.is_file()
                and subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
            ):
                return str(python)
    raise RuntimeError("Triton's Python backend needs the system's Python 3.10 to 3.12: apt-get install python3-dev")
