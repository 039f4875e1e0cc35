"""How fast does a local job start, detect a killed worker and recover, beside msrun and torchrun?

All run two workers, the job and msrun the same script, torchrun an equal one of PyTorch. Start: from the start of the
command to the end of rank 0's first optimizer step. Killed worker: from `kill -9` of rank 1 to the end of rank 0.
Recovery: from that kill to the first step of the new rank 0; msrun has no restart, so its command is run again as soon
as it has ended. Scaling: `fit` of a convolutional network with one worker on one core and with two workers on two.
Checkpoints: `fit` with a checkpoint every 10 steps and without. A gang of 64 workers, fewer when the memory is small,
starts once (not with --quick). PyTorch is installed into benchmarks/.environments, with its CUDA packages: 7 GB.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
from environments import prepare_environment
from harness import build_parser, build_target, compute_ratios, pick_port, print_result, run_in_turn, time_command

PEERS = Path(__file__).parent / "peers" / "training"
SCRIPT = PEERS / "parallel_script.py"
FIT_SCRIPT = PEERS / "fit_script.py"
SCRIPTS = Path(sysconfig.get_path("scripts"))
ENDLESS = "1000000000"
LIMIT_SECONDS = 180.0
GANG_SECONDS = 1200.0
GANG = 64
# Of a worker of the large gang: what it does not share with the others.
WORKER_BYTES = 200 << 20
# msrun and the job start `python` by name: the interpreter of this environment.
ENVIRONMENT = {**os.environ, "GLOG_v": "4", "PATH": os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])}


def wait_for(condition: Callable[[], bool], what: str, seconds: float = LIMIT_SECONDS) -> None:
    """Wait until a condition holds.

    Raises:
        RuntimeError: It does not hold in time.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def call_job(home: str, *arguments: str, prefix: tuple[str, ...] = (), fork: bool = True) -> None:
    """Run `kfp-mindspore job …` to its end."""
    environment = {
        **ENVIRONMENT,
        "KFP_MINDSPORE_FORK": str(int(fork)),
        "KFP_MINDSPORE_HOME": home,
        "KFP_MINDSPORE_BACKEND": "local",
    }
    command = [*prefix, str(SCRIPTS / "kfp-mindspore"), "job", *arguments]
    subprocess.run(command, env=environment, check=True, capture_output=True)


@contextlib.contextmanager
def run_msjob(directory: str, steps: str, workers: int = 2, policy: str = "Never", fork: bool = True) -> Iterator[None]:
    """Run the script as an MSJob until the block ends."""
    with run_job(directory, ["python", str(SCRIPT), directory, steps], workers, policy, fork):
        yield


@contextlib.contextmanager
def run_job(
    home: str,
    command: list[str],
    workers: int,
    policy: str = "Never",
    fork: bool = True,
    cores: int | None = None,
) -> Iterator[None]:
    """Run a command as an MSJob until the block ends, on the first `cores` cores or on all."""
    template = {"spec": {"containers": [{"name": "mindspore", "command": command}]}}
    manifest = {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "bench"},
        "spec": {
            "msReplicaSpecs": {"Worker": {"replicas": workers, "restartPolicy": policy, "template": template}},
        },
    }
    file = Path(home) / "job.yaml"
    file.write_text(json.dumps(manifest))
    prefix = ("taskset", "--cpu-list", f"0-{cores - 1}") if cores else ()
    call_job(home, "submit", str(file), prefix=prefix, fork=fork)
    try:
        yield
    finally:
        call_job(home, "delete", "bench")


def run_msrun(directory: str, steps: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the script by msrun until the block ends."""
    options = ("--worker_num=2", "--local_worker_num=2", "--join=True", "--master_addr=127.0.0.1")
    port = f"--master_port={pick_port()}"
    return run_launcher(
        [str(SCRIPTS / "msrun"), *options, port, f"--log_dir={directory}/log"], SCRIPT, directory, steps
    )


def run_torchrun(directory: str, steps: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the equal script of PyTorch by torchrun until the block ends."""
    program = prepare_environment(PEERS / "torch.txt") / "torchrun"
    options = ("--nnodes=1", "--nproc-per-node=2", "--max-restarts=3", "--rdzv-backend=c10d")
    endpoint = f"--rdzv-endpoint=127.0.0.1:{pick_port()}"
    return run_launcher([str(program), *options, endpoint], PEERS / "torch_script.py", directory, steps)


@contextlib.contextmanager
def run_launcher(command: list[str], script: Path, directory: str, steps: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a script by a launcher until the block ends."""
    launcher = subprocess.Popen(
        [*command, str(script), directory, steps],
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        start_new_session=True,
    )
    workers = psutil.Process(launcher.pid)
    try:
        yield launcher
    finally:
        # torchrun's workers have sessions of their own.
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (*workers.children(recursive=True), workers):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        launcher.wait()


LAUNCHERS: dict[str, Callable[..., contextlib.AbstractContextManager[object]]] = {
    "msjob": run_msjob,
    "msrun": run_msrun,
    "torchrun": run_torchrun,
}


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


def kill_worker(folder: Path) -> float:
    """Kill rank 1 after the first steps and return the time."""
    wait_for(lambda: all((folder / f"first-step-{rank}").exists() for rank in (0, 1)), "first steps")
    start = time.time()
    os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
    return start


def wait_for_new_step(folder: Path, start: float) -> float:
    """Return the seconds from the kill to the end of the next first step of rank 0."""
    wait_for(lambda: float((folder / "first-step-0").read_text()) > start, "first step after the restart")
    return float((folder / "first-step-0").read_text()) - start


def time_msjob_recovery(fork: bool) -> float:
    """Return the seconds from the death of rank 1 to rank 0's next step."""
    with tempfile.TemporaryDirectory() as directory, run_msjob(directory, ENDLESS, 2, "OnFailure", fork):
        return wait_for_new_step(Path(directory), kill_worker(Path(directory)))


def time_torchrun_recovery() -> float:
    """Return the same for torchrun."""
    with tempfile.TemporaryDirectory() as directory, run_torchrun(directory, ENDLESS):
        return wait_for_new_step(Path(directory), kill_worker(Path(directory)))


def time_msrun_recovery() -> float:
    """Return the same for msrun, whose command is run again."""
    with tempfile.TemporaryDirectory() as directory:
        with run_msrun(directory, ENDLESS) as launcher:
            start = kill_worker(Path(directory))
            launcher.wait()
        with run_msrun(directory, ENDLESS):
            return wait_for_new_step(Path(directory), start)


def time_import_and_init() -> float:
    """Return the seconds of a process start with the import of MindSpore, and of init() with two workers."""
    imports = time_command([sys.executable, "-c", "import mindspore.communication, mindspore.train"], ENVIRONMENT)
    with tempfile.TemporaryDirectory() as directory, run_msjob(directory, "20"):
        wait_for(lambda: (Path(directory) / "first-step-0").exists(), "first step")
        return imports + float((Path(directory) / "init-0").read_text())


def measure_rate(workers: int, *options: str) -> float:
    """Return the samples per second of a training by `fit`, with a core for each worker."""
    with tempfile.TemporaryDirectory() as directory:
        rate = Path(directory) / "rate"
        with run_job(directory, ["python", str(FIT_SCRIPT), directory, *options], workers, cores=workers):
            wait_for(rate.exists, f"training with {workers} workers")
            return float(rate.read_text())


def time_large_gang(workers: int) -> float:
    """Return the seconds from the start of the command to the first step of a gang."""
    with tempfile.TemporaryDirectory() as directory:
        start = time.time()
        with run_msjob(directory, "3", workers):
            wait_for((Path(directory) / "first-step-0").exists, f"first step of {workers} workers", GANG_SECONDS)
            return float((Path(directory) / "first-step-0").read_text()) - start


def main() -> None:
    arguments = build_parser(__doc__ or "").parse_args()
    prepare_environment(PEERS / "torch.txt")
    rounds = 1 if arguments.quick else 5
    starts = run_in_turn({name: partial(time_first_step, name) for name in LAUNCHERS}, rounds)
    detections = run_in_turn({name: partial(time_detection, name) for name in LAUNCHERS}, min(rounds, 3))
    recovered = run_in_turn(
        {
            "msjob": partial(time_msjob_recovery, True),
            "msjob, new processes": partial(time_msjob_recovery, False),
            "msrun, run again": time_msrun_recovery,
            "torchrun": time_torchrun_recovery,
        },
        min(rounds, 3),
    )
    base = time_import_and_init()
    rates = run_in_turn({"1": partial(measure_rate, 1), "2": partial(measure_rate, 2)}, min(rounds, 3))
    saving = run_in_turn(
        {"plain": partial(measure_rate, 1), "saving": partial(measure_rate, 1, "--checkpoints")}, min(rounds, 3)
    )
    further = {}
    if not arguments.quick:
        size = min(GANG, psutil.virtual_memory().available // WORKER_BYTES)
        further[f"seconds to the first step of a gang of {size}"] = time_large_gang(size)
    print_result(
        "distributed",
        [
            build_target("seconds to recover, msjob", recovered["msjob"], 5.0),
            build_target(
                "seconds to recover, msjob with new processes", recovered["msjob, new processes"], round(base + 2, 2)
            ),
            build_target(
                "recovery, msjob / msjob with new processes",
                compute_ratios(recovered["msjob"], recovered["msjob, new processes"]),
                0.75,
            ),
            build_target("seconds to recover, msrun run again", recovered["msrun, run again"]),
            build_target("seconds to recover, torchrun", recovered["torchrun"]),
            build_target(
                "scaling of two workers, rate / (2 * rate of one)",
                [ratio / 2 for ratio in compute_ratios(rates["2"], rates["1"])],
                0.85,
                at_least=True,
            ),
            build_target(
                "step time with a checkpoint every 10 steps / without",
                compute_ratios(saving["plain"], saving["saving"]),
                1.02,
            ),
            *(build_target(name, [seconds]) for name, seconds in further.items()),
            build_target("start to first step, msjob / msrun", compute_ratios(starts["msjob"], starts["msrun"]), 1.0),
            build_target("seconds to detect a killed worker, msjob", detections["msjob"], 1.0),
            build_target("seconds to detect a killed worker, msrun", detections["msrun"]),
            build_target("seconds to detect a killed worker, torchrun", detections["torchrun"]),
        ],
        {
            "bars": {
                "seconds to the first step": starts,
                "seconds to detect a killed worker": detections,
                "seconds to recover": recovered,
            }
        },
    )


if __name__ == "__main__":
    main()
