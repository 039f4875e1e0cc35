"""Data parallelism with real workers."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, list_checkpoints
from kfp_mindspore.training.distributed import WorkerInfo, init_distributed
from tests.support.mindspore_processes import MindSporeProcess, MindSporeProcesses

SCRIPT = Path(__file__).with_name("parallel_script.py")
# MindSpore 2.9 sometimes ends a worker so after its script has finished; files and weights are compared instead.
CRASH_AT_EXIT = -signal.SIGSEGV


def start_cluster(
    processes: MindSporeProcesses, root: Path, dataset: Path, *arguments: str, workers: int = 2
) -> list[MindSporeProcess]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "KFP_MINDSPORE_DATASET_DIR": str(dataset),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
        "MS_WORKER_NUM": str(workers),
    }
    roles = [{"MS_ROLE": "MS_SCHED"}, *({"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank)} for rank in range(workers))]
    command = [SCRIPT, root, *arguments]
    return [processes.start(command, root, environment={**common, **role}) for role in roles]


def finish(started: list[MindSporeProcess]) -> tuple[list[int], str]:
    results = [process.finish() for process in started]
    return [code for code, _ in results], "---\n".join(output for _, output in results)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_dataset("digits", tmp_path_factory.mktemp("data") / "digits").path


@pytest.mark.mindspore
def test_two_workers_compute_what_one_does_and_resume_after_sigterm_to_one(
    mindspore_processes: MindSporeProcesses, dataset: Path, tmp_path: Path
) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"

    # SIGTERM to worker 1 in the middle of epoch 2: worker 0 stops after the same step and has saved it.
    codes, output = finish(start_cluster(mindspore_processes, together, dataset, "1"))
    assert set(codes[1:]) <= {143, CRASH_AT_EXIT}, output
    newest = Checkpoint.open(list_checkpoints(together / "checkpoints")[0])
    assert newest.path.name == "00001-46"
    assert newest.training["workers"] == 2

    environment = {"KFP_MINDSPORE_DATASET_DIR": str(dataset)}
    single = mindspore_processes.start([SCRIPT, alone], alone, environment=environment)
    codes, output = finish([*start_cluster(mindspore_processes, together, dataset), single])
    assert set(codes) <= {0, CRASH_AT_EXIT}, output
    assert "resuming from" in output

    files = (alone / "weights-0.npz", together / "weights-0.npz", together / "weights-1.npz")
    weights = [np.load(file)["weights"] for file in files]
    assert np.abs(weights[0] - weights[1]).max() < 1e-5
    assert np.array_equal(weights[1], weights[2])
    histories = [(root / "output" / "metrics.jsonl").read_text().splitlines() for root in (alone, together)]
    assert len(histories[0]) == len(histories[1]) == 4
    for one, two in zip(*(map(json.loads, lines) for lines in histories), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)
        assert one["learning_rate"] == two["learning_rate"]
        assert one["validation"] == pytest.approx(two["validation"], abs=1e-4)


@pytest.mark.parametrize(
    ("rank", "size", "samples", "expected"),
    [(0, 1, 32, (0, 32)), (0, 2, 32, (0, 16)), (1, 2, 32, (16, 32)), (2, 4, 8, (4, 6))],
)
def test_shard_of_a_batch(rank: int, size: int, samples: int, expected: tuple[int, int]) -> None:
    shard = WorkerInfo(rank, size).get_shard(samples)
    assert (shard.start, shard.stop) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MS_ROLE": "MS_PSERVER"}, "MS_ROLE: must be MS_SCHED or MS_WORKER, got 'MS_PSERVER'"),
        ({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2"}, "MS_SCHED_HOST, MS_SCHED_PORT is not set"),
    ],
)
def test_error_names_the_wrong_variable(
    environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    init_distributed.cache_clear()
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        init_distributed()


def test_process_without_a_role_is_the_only_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_ROLE", raising=False)
    init_distributed.cache_clear()
    assert init_distributed() == WorkerInfo(rank=0, size=1)
