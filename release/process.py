"""Commands that make a release."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kfp_mindspore.errors import ProcessFailedError


def run(folder: Path, *words: str, **environment: str) -> str:
    """Run a command and return its output.

    Raises:
        ProcessFailedError: It failed; `log` has its last lines.
    """
    done = subprocess.run(
        words, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        log = (done.stdout + done.stderr).splitlines()[-10:]
        raise ProcessFailedError(f"{' '.join(words[:3])}: ended with exit code {done.returncode}", log=log)
    return done.stdout
