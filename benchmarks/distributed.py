"""How fast does a local job of two workers start and detect a killed worker, beside MindSpore's launcher, msrun?

Both run the same script. Start: from the start of the command to the end of rank 0's first optimizer step. Killed
worker: from `kill -9` of rank 1 to the end of rank 0.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
from harness import build_parser, build_target, compute_ratios, print_result, run_in_turn

SCRIPT = Path(__file__).parent / "peers" / "parallel_script.py"
SCRIPTS = Path(sysconfig.get_path("scripts"))
ENDLESS = "1000000000"
LIMIT_SECONDS = 180.0
# msrun and the job start `python` by name: the interpreter of this environment.
ENVIRONMENT = {**os.environ, "GLOG_v": "4", "PATH": os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        RuntimeError: It does not hold within LIMIT_SECONDS.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def call_job(home: str, *arguments: str) -> None:
    """Run `kfp-mindspore job …` to its end."""
    environment = {**ENVIRONMENT, "KFP_MINDSPORE_HOME": home, "KFP_MINDSPORE_BACKEND": "local"}
    subprocess.run(
        [str(SCRIPTS / "kfp-mindspore"), "job", *arguments], env=environment, check=True, capture_output=True
    )


@contextlib.contextmanager
def run_msjob(directory: str, steps: str) -> Iterator[None]:
    """Run the script as an MSJob until the block ends."""
    call_job(
        directory,
        *("submit", "--name", "bench", "--workers", "2", "--restart-policy", "Never", "--"),
        *("python", str(SCRIPT), directory, steps),
    )
    try:
        yield
    finally:
        call_job(directory, "delete", "bench")


@contextlib.contextmanager
def run_msrun(directory: str, steps: str) -> Iterator[None]:
    """Run the script by msrun until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = subprocess.Popen(
        [
            *(str(SCRIPTS / "msrun"), "--worker_num=2", "--local_worker_num=2", "--join=True"),
            *("--master_addr=127.0.0.1", f"--master_port={port}", f"--log_dir={directory}/log"),
            *(str(SCRIPT), directory, steps),
        ],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


LAUNCHERS = {"msjob": run_msjob, "msrun": run_msrun}


def time_first_step(name: str) -> float:
    """Return the seconds from the start of the command to the end of rank 0's first step."""
    with tempfile.TemporaryDirectory() as directory:
        first = Path(directory) / "first-step-0"
        start = time.time()
        with LAUNCHERS[name](directory, "20"):
            wait_for(first.exists, f"{name}: first step")
            return float(first.read_text()) - start


def time_detection(name: str) -> float:
    """Return the seconds from the death of rank 1 to the end of rank 0."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with LAUNCHERS[name](directory, ENDLESS):
            wait_for(lambda: all((folder / f"first-step-{rank}").exists() for rank in (0, 1)), f"{name}: first steps")
            killed, peer = (int((folder / f"pid-{rank}").read_text()) for rank in (1, 0))
            start = time.perf_counter()
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: not is_alive(peer), f"{name}: end of rank 0")
            return time.perf_counter() - start


def main() -> None:
    arguments = build_parser(__doc__ or "").parse_args()
    rounds = 1 if arguments.quick else 5
    starts = run_in_turn({name: partial(time_first_step, name) for name in LAUNCHERS}, rounds)
    detections = run_in_turn({name: partial(time_detection, name) for name in LAUNCHERS}, min(rounds, 3))
    print_result(
        "distributed",
        [
            build_target("start to first step, msjob / msrun", compute_ratios(starts["msjob"], starts["msrun"]), 1.0),
            build_target("seconds to detect a killed worker, msjob", detections["msjob"], 1.0),
            build_target("seconds to detect a killed worker, msrun", detections["msrun"]),
        ],
        {"bars": {"seconds to the first step": starts, "seconds to detect a killed worker": detections}},
    )


if __name__ == "__main__":
    main()
