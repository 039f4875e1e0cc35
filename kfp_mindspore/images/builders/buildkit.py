"""BuildKit by Docker's command line: `docker buildx build`, or the client that older versions have built in.

The docker SDK speaks to the legacy builder only; BuildKit's protocol is the command line's.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError
from kfp_mindspore.images.builders.docker_messages import KEPT_LINES
from kfp_mindspore.images.result import OnProgress, Progress

_LINE = re.compile(r"#(\d+) (.*)")
_OUTPUT = re.compile(r"\d+\.\d+ ?(.*)")
_STATE = re.compile(
    r"(DONE|CACHED|CANCELED)\b|(sha256:|transferring |resolve |extracting |sending |naming to|writing )"
)
_GRACE_SECONDS = 10.0


def find_buildkit(executable: str = "docker") -> list[str]:
    """Return the words that start a build by BuildKit, or an empty list when this command line has none.

    Args:
        executable: Docker's command line.
    """
    path = shutil.which(executable)
    if path is None:
        return []
    for words in ([path, "buildx", "build"], [path, "build"]):
        asked = subprocess.run(
            [*words, "--help"],
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        # A command line without BuildKit refuses, or knows no secrets.
        if asked.returncode == 0 and "--secret" in asked.stdout:
            return words
    return []


def list_arguments(
    *,
    containerfile: str,
    tag: str,
    labels: Mapping[str, str],
    platform: str,
    build_args: Mapping[str, str],
    network: str,
    secrets: Mapping[str, Path],
) -> list[str]:
    """Return the arguments of a build whose context is a tar on standard input."""
    arguments = ["--progress", "plain", "--file", containerfile, "--tag", tag, "--platform", platform]
    for option, pairs in (("--label", labels), ("--build-arg", build_args)):
        for key, value in sorted(pairs.items()):
            arguments += [option, f"{key}={value}"]
    if network:
        arguments += ["--network", network]
    for name, path in sorted(secrets.items()):
        arguments += ["--secret", f"id={name},src={path}"]
    return [*arguments, "-"]


def run_buildkit(
    words: list[str],
    arguments: list[str],
    context: BinaryIO,
    on_progress: OnProgress,
    *,
    host: str = "",
    docker_config: Path | None = None,
) -> None:
    """Run one build to its end; when this process is interrupted, so is the build.

    Args:
        words: What `find_buildkit` returned.
        arguments: What `list_arguments` returned.
        context: A real file with the context's tar, at its start.
        on_progress: Told every step and line of output.
        host: The daemon's address; an empty text for the command line's own choice.
        docker_config: A config.json with logins.

    Raises:
        ProcessFailedError: A step failed; the message names it, `log` has its last lines.
    """
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", **({"DOCKER_HOST": host} if host else {})}
    # A builder of buildx's own would keep the image out of the daemon.
    if "buildx" in words:
        environment["BUILDX_BUILDER"] = "default"
    with contextlib.ExitStack() as stack:
        if docker_config is not None:
            # Where certificates are unless it is said.
            environment.setdefault("DOCKER_CERT_PATH", str(_find_own_folder()))
            environment["DOCKER_CONFIG"] = stack.enter_context(_config_folder(docker_config))
        process = subprocess.Popen(
            [*words, *arguments],
            stdin=context,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            errors="replace",
            # Ctrl-C is ours to pass on: the command line must not outlive what follows it.
            start_new_session=True,
        )
        stack.callback(_end, process)
        assert process.stderr is not None
        failure = read_plain_progress(process.stderr, on_progress)
        if code := process.wait():
            raise failure or KfpMindSporeError(f"build: {' '.join(words)} ended with exit code {code}")


def read_plain_progress(lines: Iterable[str], on_progress: OnProgress) -> ProcessFailedError | None:
    """Read BuildKit's plain progress.

    Args:
        lines: Its lines.
        on_progress: Told every step of the Containerfile and line of output.

    Returns:
        The first step's failure with its last lines, or what was said outside of steps; None when nothing was wrong.
    """
    names: dict[str, str] = {}
    outputs: dict[str, deque[str]] = {}
    failure: ProcessFailedError | None = None
    said: deque[str] = deque(maxlen=KEPT_LINES)
    for raw in lines:
        line = raw.rstrip()
        matched = _LINE.fullmatch(line)
        if matched is None:
            if line.strip(" -"):
                said.append(line)
            continue
        number, text = matched[1], matched[2]
        if number not in names:
            names[number] = text
            outputs[number] = deque(maxlen=KEPT_LINES)
            on_progress(Progress(text))
        elif text.startswith("ERROR"):
            if failure is None:
                reason = text.partition(" ")[2]
                failure = ProcessFailedError(f"{names[number]}: {reason}", log=list(outputs[number]))
        elif output := _OUTPUT.fullmatch(text):
            outputs[number].append(output[1])
            on_progress(Progress(names[number], text=output[1]))
        elif text != names[number] and not _STATE.match(text):
            on_progress(Progress(names[number], text=text))
    if failure is None and said:
        return ProcessFailedError(f"build: {said[-1].removeprefix('ERROR: ')}", log=list(said)[:-1])
    return failure


def _end(process: subprocess.Popen[str]) -> None:
    """End the command line if it still runs: it cancels the build in the daemon when asked to end.

    Its plugin is a process of its own, which it does not pass the signal on to.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        process.stderr.close()


def _find_own_folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker").absolute()


@contextlib.contextmanager
def _config_folder(docker_config: Path) -> Iterator[str]:
    """Yield a folder whose config.json is the given file: the command line takes no file.

    The plugins of the user's own folder are in it as well. It can be written to, which buildx does.
    """
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-docker-") as folder:
        Path(folder, "config.json").symlink_to(docker_config.absolute())
        Path(folder, "cli-plugins").symlink_to(_find_own_folder() / "cli-plugins")
        yield folder
