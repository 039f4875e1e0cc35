"""Data parallelism with real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, list_checkpoints
from kfp_mindspore.settings import HANG_EXIT_CODE, SIZE_VARIABLES
from kfp_mindspore.training.distributed import WorkerInfo, compute_straggler, init_distributed
from tests.support.mindspore_processes import MindSporeProcess, MindSporeProcesses, start_gang

SCRIPT = Path(__file__).with_name("parallel_script.py")
# MindSpore 2.9 sometimes ends a worker so after its script has finished; files and weights are compared instead.
CRASH_AT_EXIT = -signal.SIGSEGV


def finish(started: list[MindSporeProcess]) -> tuple[list[int], str]:
    results = [process.finish() for process in started]
    return [code for code, _ in results], "---\n".join(output for _, output in results)


@pytest.mark.slow
@pytest.mark.mindspore
def test_three_workers_resume_in_middle_of_epoch_of_two(
    mindspore_processes: MindSporeProcesses, digits_dataset: Path, tmp_path: Path
) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"

    # SIGTERM to worker 1 in the middle of epoch 2: worker 0 stops after the same step and has saved it.
    environment = {"KFP_MINDSPORE_DATASET_DIR": str(digits_dataset)}
    codes, output = finish(start_gang(mindspore_processes, [SCRIPT, together, "1"], together, 2, environment))
    assert set(codes[1:]) <= {143, CRASH_AT_EXIT}, output
    newest = Checkpoint.open(list_checkpoints(together / "checkpoints")[0])
    assert newest.path.name == "00001-46"
    assert newest.training["workers"] == 2

    single = mindspore_processes.start([SCRIPT, alone], alone, environment=environment)
    codes, output = finish([*start_gang(mindspore_processes, [SCRIPT, together], together, 3, environment), single])
    assert set(codes) <= {0, CRASH_AT_EXIT}, output
    assert "resuming from" in output

    files = (alone / "weights-0.npz", *(together / f"weights-{rank}.npz" for rank in range(3)))
    weights = [np.load(file)["weights"] for file in files]
    assert np.abs(weights[0] - weights[1]).max() < 1e-5
    assert all(np.array_equal(weights[1], other) for other in weights[2:])
    histories = [(root / "output" / "metrics.jsonl").read_text().splitlines() for root in (alone, together)]
    assert len(histories[0]) == len(histories[1]) == 4
    for one, two in zip(*(map(json.loads, lines) for lines in histories), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)
        assert one["learning_rate"] == two["learning_rate"]
        assert one["validation"] == pytest.approx(two["validation"], abs=1e-4)


@pytest.mark.mindspore
def test_missing_worker_ends_others(mindspore_processes: MindSporeProcesses, tmp_path: Path) -> None:
    """In a pod, where no supervisor reads heartbeats."""
    gang = start_gang(mindspore_processes, [SCRIPT, tmp_path], tmp_path, 2, {"KFP_MINDSPORE_HANG_SECONDS": "1"})
    gang.pop().kill()
    codes, output = finish(gang)
    assert codes == [HANG_EXIT_CODE] * 2, output
    assert output.count("the rendezvous of 2 workers with the scheduler at 127.0.0.1:") == 2
    assert output.count(" is incomplete after 3 s: a member has not started, hangs or cannot connect") == 2


@pytest.mark.parametrize(
    ("size", "requested", "pieces"), [(1, 1, 1), (2, 2, 1), (2, 3, 2), (1, 3, 3), (2, 1, 1), (3, 4, 2)]
)
def test_fewer_workers_than_requested_compute_in_pieces(size: int, requested: int, pieces: int) -> None:
    assert WorkerInfo(0, size, requested).pieces == pieces


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [([0.1, 0.1], None), ([0.1, 0.16], 1), ([0.3, 0.1, 0.12], 0), ([0.001, 0.003], None), ([0.2, 0.2, 0.25], None)],
)
def test_straggler_exceeds_median_of_others(seconds: list[float], slow: int | None) -> None:
    assert compute_straggler(seconds) == slow


WORKER = {"MS_ROLE": "MS_WORKER", "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": "8118", "MS_WORKER_NUM": "2"}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MS_ROLE": "MS_OTHER"}, "MS_ROLE: must be MS_SCHED or MS_WORKER, got 'MS_OTHER'"),
        ({"MS_ROLE": "MS_PSERVER"}, "the job has parameter servers, which MindSpore 2.9 cannot train with"),
        ({"MS_ROLE": "MS_WORKER", "MS_SERVER_NUM": "1"}, "the job has parameter servers"),
        ({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2"}, "MS_SCHED_HOST, MS_SCHED_PORT is not set"),
        ({**WORKER, "MS_WORKER_NUM": "two"}, "MS_WORKER_NUM: must be a number of at least 1, got 'two'"),
        ({**WORKER, "MS_WORKER_NUM": "0"}, "MS_WORKER_NUM: must be a number of at least 1, got '0'"),
        ({**WORKER, "MS_SCHED_PORT": "99999"}, "MS_SCHED_PORT: must be a number of 1 to 65535, got '99999'"),
        ({**WORKER, "MS_SERVER_NUM": "x"}, "MS_SERVER_NUM: must be a number of at least 0, got 'x'"),
    ],
)
def test_error_names_wrong_variable(environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM", "MS_SERVER_NUM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    init_distributed.cache_clear()
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        init_distributed()


LAUNCHERS = {
    "msrun": {"MS_WORKER_NUM": "2", "MS_NODE_ID": "1"},
    "Open MPI": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
    "MPICH": {"PMI_SIZE": "2", "PMI_RANK": "0"},
    "Trainer, torch": {"PET_NNODES": "2", "PET_NODE_RANK": "1"},
    "torchrun, elastic": {"PET_NNODES": "1:4", "PET_NODE_RANK": "0"},
    "Trainer, jax": {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JOB_COMPLETION_INDEX": "0"},
    "PyTorch convention, Ray": {"WORLD_SIZE": "2", "RANK": "1"},
    "indexed Job": {"MS_WORKER_NUM": "2", "JOB_COMPLETION_INDEX": "1"},
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_process_does_not_train_alone_where_several_are_announced(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear_launchers(monkeypatch)
    for name, value in LAUNCHERS[launcher].items():
        monkeypatch.setenv(name, value)
    size = next(iter(LAUNCHERS[launcher].items()))
    with pytest.raises(UserError, match="{}={} announces several processes, but MS_ROLE is not set".format(*size)):
        init_distributed()
    monkeypatch.setenv(size[0], "1")
    assert init_distributed() == WorkerInfo(rank=0, size=1)


def test_several_nodes_are_refused_by_runtime_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_launchers(monkeypatch)
    variables = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "a-node-0-0.a:29500"}
    for name, value in {**variables, "MS_WORKER_NUM": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"JAX_NUM_PROCESSES=2 .* the runtime sets MS_WORKER_NUM=1: it is for one node"):
        init_distributed()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    assert init_distributed() == WorkerInfo(rank=0, size=1)


def clear_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MS_ROLE", *SIZE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    init_distributed.cache_clear()


def test_process_without_role_is_only_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_launchers(monkeypatch)
    init_distributed.cache_clear()
    assert init_distributed() == WorkerInfo(rank=0, size=1)
    # The last worker of an elastic job.
    monkeypatch.setenv("KFP_MINDSPORE_REQUESTED_WORKERS", "3")
    init_distributed.cache_clear()
    assert init_distributed().pieces == 3
    init_distributed.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are bound on Linux only")
def test_all_threads_are_bound_to_worker_s_cores() -> None:
    core = min(os.sched_getaffinity(0))
    script = (
        "import os, threading\n"
        "from kfp_mindspore.training.distributed import bind_to_cores\n"
        "event, cores = threading.Event(), []\n"
        "old = threading.Thread(target=lambda: (event.wait(), cores.append(os.sched_getaffinity(0))))\n"
        "old.start()\n"
        "bind_to_cores()\n"
        "event.set()\n"
        "old.join()\n"
        "print([*cores[0]], [*os.sched_getaffinity(0)])\n"
    )
    environment = {**os.environ, "KFP_MINDSPORE_CORES": str(core)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == f"[{core}] [{core}]"
