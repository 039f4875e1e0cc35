"""BuildKit: its plain progress output, and Docker's command line with the plugin buildx.

docker's SDK has no BuildKit client.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError
from kfp_mindspore.images.builders.docker_messages import KEPT_LINES
from kfp_mindspore.images.containerfile import CONTAINERFILE_FILE
from kfp_mindspore.images.progress import BuildProgress, OnProgress

_LINE = re.compile(r"#(\d+) (.*)")
_OUTPUT = re.compile(r"\d+\.\d+ ?(.*)")
_STATE = re.compile(
    r"(DONE|CACHED|CANCELED)\b|(sha256:|transferring |resolve |extracting |sending |naming to|writing )"
)
_GRACE_SECONDS = 10.0


def get_buildx_command(executable: str = "docker") -> list[str]:
    """Return a build's command by buildx, or an empty list without the plugin.

    Args:
        executable: Docker's command line.
    """
    path = shutil.which(executable)
    if path is None:
        return []
    version = subprocess.run([path, "buildx", "version"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return [path, "buildx", "build"] if version.returncode == 0 else []


def run_buildx(
    command: list[str],
    context: BinaryIO,
    on_progress: OnProgress,
    *,
    host: str = "",
    docker_config: Path | None = None,
) -> None:
    """Run a build to its end; an interrupt cancels it.

    Args:
        command: The command and its arguments, without the context's arguments.
        context: A real file with the context's tar, positioned at the start.
        on_progress: Called with every step and output line.
        host: The daemon's address; empty for the command line's default.
        docker_config: A config.json with logins.

    Raises:
        ProcessFailedError: A step failed; the message names it, `log` has its last lines.
    """
    # Another buildx builder than the default one keeps the image out of the daemon.
    environment = {**os.environ, "BUILDX_BUILDER": "default", **({"DOCKER_HOST": host} if host else {})}
    with contextlib.ExitStack() as stack:
        if docker_config is not None:
            # The certificate folder's default depends on DOCKER_CONFIG.
            environment.setdefault("DOCKER_CERT_PATH", str(_get_config_folder()))
            environment["DOCKER_CONFIG"] = stack.enter_context(_make_config_folder(docker_config))
        process = subprocess.Popen(
            [*command, "--progress", "plain", "--file", CONTAINERFILE_FILE, "-"],
            stdin=context,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
            # Keeps the terminal's Ctrl-C from it: _terminate sends the signal.
            start_new_session=True,
        )
        stack.callback(_terminate, process)
        assert process.stderr is not None
        failure = read_plain_progress(process.stderr, on_progress)
        if code := process.wait():
            raise failure or KfpMindSporeError(f"build: {' '.join(command[:3])} exited with code {code}")


def read_plain_progress(lines: Iterable[str], on_progress: OnProgress) -> ProcessFailedError | None:
    """Read BuildKit's plain progress.

    Args:
        lines: The output's lines.
        on_progress: Called with every Containerfile step and output line.

    Returns:
        The first failed step's error with its last lines, else with the output outside steps; None without.
    """
    names: dict[str, str] = {}
    outputs: dict[str, deque[str]] = {}
    failure: ProcessFailedError | None = None
    other: deque[str] = deque(maxlen=KEPT_LINES)
    for raw in lines:
        line = raw.rstrip()
        matched = _LINE.fullmatch(line)
        if matched is None:
            if line.strip(" -"):
                other.append(line)
            continue
        number, text = matched[1], matched[2]
        if number not in names:
            names[number] = text
            outputs[number] = deque(maxlen=KEPT_LINES)
            on_progress(BuildProgress(text))
        elif text.startswith("ERROR"):
            if failure is None:
                reason = text.partition(" ")[2]
                failure = ProcessFailedError(f"{names[number]}: {reason}", log=list(outputs[number]))
        elif output := _OUTPUT.fullmatch(text):
            outputs[number].append(output[1])
            on_progress(BuildProgress(names[number], text=output[1]))
        elif text != names[number] and not _STATE.match(text):
            on_progress(BuildProgress(names[number], text=text))
    if failure is None and other:
        return ProcessFailedError(f"build: {other[-1].removeprefix('ERROR: ')}", log=list(other)[:-1])
    return failure


def _terminate(process: subprocess.Popen[str]) -> None:
    """Terminate the command line if it still runs: on SIGINT it cancels the build in the daemon."""
    if process.poll() is None:
        # The whole group: Docker's command line does not forward signals to its plugin.
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _get_config_folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker").absolute()


@contextlib.contextmanager
def _make_config_folder(docker_config: Path) -> Iterator[str]:
    """Yield a writable DOCKER_CONFIG with the given config.json and the user's own plugins."""
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-docker-") as folder:
        Path(folder, "config.json").symlink_to(docker_config.absolute())
        Path(folder, "cli-plugins").symlink_to(_get_config_folder() / "cli-plugins")
        yield folder
