"""A local job of two workers beside MindSpore's own launcher, msrun, on the same script.

Start to first step: from the start of the command to the end of rank 0's first optimizer step. Killed worker: from
`kill -9` of rank 1 to the end of every other process of the job. Whole commands are measured on both sides.
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

from harness import build_parser, build_target, pair_ratios, print_result, run_in_turn

SCRIPT = Path(__file__).parent / "peers" / "parallel_script.py"
SCRIPTS = Path(sysconfig.get_path("scripts"))
ENDLESS = "1000000000"
LIMIT_SECONDS = 180.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        RuntimeError: It does not within LIMIT_SECONDS.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def call_job(home: str, *arguments: str) -> None:
    """Run `kfp-mindspore job …` to its end."""
    environment = {**os.environ, "KFP_MINDSPORE_HOME": home, "KFP_MINDSPORE_BACKEND": "local", "GLOG_v": "4"}
    subprocess.run(
        [str(SCRIPTS / "kfp-mindspore"), "job", *arguments], env=environment, check=True, capture_output=True
    )


@contextlib.contextmanager
def run_msjob(directory: str, steps: str) -> Iterator[None]:
    """Run the script as an MSJob for the length of the block."""
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
    """Run the script by msrun for the length of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = subprocess.Popen(
        [
            *(str(SCRIPTS / "msrun"), "--worker_num=2", "--local_worker_num=2", "--join=True"),
            *("--master_addr=127.0.0.1", f"--master_port={port}", f"--log_dir={directory}/log"),
            *(str(SCRIPT), directory, steps),
        ],
        env={**os.environ, "GLOG_v": "4"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        start_new_session=True,
    )
    (Path(directory) / "launcher").write_text(str(launcher.pid))
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


def time_notice(name: str) -> float:
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
    notices = run_in_turn({name: partial(time_notice, name) for name in LAUNCHERS}, min(rounds, 3))
    print_result(
        "distributed",
        [
            build_target("start to first step, msjob / msrun", pair_ratios(starts["msjob"], starts["msrun"]), 1.0),
            build_target("seconds to notice a killed worker, msjob", notices["msjob"], 1.0),
            build_target("seconds to notice a killed worker, msrun", notices["msrun"]),
        ],
        {"start to first step": starts, "killed worker": notices},
    )


if __name__ == "__main__":
    main()
