"""Commands that build a test cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


def call(
    *command: str, seconds: float | None = 120, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """Run a command without input and return its output.

    Raises:
        RuntimeError: It failed; the message holds its errors.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
        cwd=folder,
        env=environment,
    )
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip())[-4000:]
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {output}")
    return done.stdout
