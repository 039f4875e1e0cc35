"""Real workers, started by hand with the topology in their environment."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, list_checkpoints
from kfp_mindspore.formats.dataset import load_dataset
from kfp_mindspore.training.distributed import WorkerInfo, init_distributed

SCRIPT = Path(__file__).with_name("parallel_script.py")


def start(root: Path, dataset: Path, *arguments: str, **topology: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    environment.update(topology, KFP_MINDSPORE_DATASET_DIR=str(dataset))
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), *arguments],
        env=environment,
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_cluster(root: Path, dataset: Path, *arguments: str, workers: int = 2) -> list[subprocess.Popen[str]]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    common = {"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port), "MS_WORKER_NUM": str(workers)}
    scheduler = start(root, dataset, *arguments, MS_ROLE="MS_SCHED", **common)
    ranks = [
        start(root, dataset, *arguments, MS_ROLE="MS_WORKER", MS_NODE_ID=str(rank), **common) for rank in range(workers)
    ]
    return [scheduler, *ranks]


def finish(processes: list[subprocess.Popen[str]]) -> tuple[list[int], str]:
    output = ""
    try:
        for process in processes:
            output += f"--- {process.pid}\n" + process.communicate(timeout=120)[0]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [process.returncode for process in processes], output


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_dataset("digits", tmp_path_factory.mktemp("data") / "digits").path


@pytest.mark.mindspore
def test_two_workers_do_what_one_does_and_sigterm_to_one_saves_both(dataset: Path, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()

    # Worker 1 is asked to leave in the middle of epoch 2; worker 0 leaves with it and has saved the step.
    codes, output = finish(start_cluster(together, dataset, "1"))
    assert codes[1:] == [143, 143], output
    newest = Checkpoint.open(list_checkpoints(together / "checkpoints")[0])
    assert newest.path.name == "00001-46"
    assert newest.training["workers"] == 2

    (codes, output) = finish([*start_cluster(together, dataset), start(alone, dataset)])
    assert codes == [0, 0, 0, 0], output
    assert "resuming from" in output

    weights = [np.load(root / name)["weights"] for root, name in both(alone, together)]
    assert np.abs(weights[0] - weights[1]).max() < 1e-5
    assert np.array_equal(weights[1], weights[2])
    histories = [(root / "output" / "metrics.jsonl").read_text().splitlines() for root in (alone, together)]
    assert len(histories[0]) == len(histories[1]) == 4
    for one, two in zip(*(map(json.loads, lines) for lines in histories), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], abs=1e-5)
        assert one["learning_rate"] == two["learning_rate"]
        assert one["validation"] == pytest.approx(two["validation"], abs=1e-4)


def both(alone: Path, together: Path) -> list[tuple[Path, str]]:
    return [(alone, "weights-0.npz"), (together, "weights-0.npz"), (together, "weights-1.npz")]


@pytest.mark.parametrize(
    ("rank", "size", "samples", "expected"),
    [(0, 1, 32, (0, 32)), (0, 2, 32, (0, 16)), (1, 2, 32, (16, 32)), (2, 4, 8, (4, 6))],
)
def test_a_batch_is_shared_out(rank: int, size: int, samples: int, expected: tuple[int, int]) -> None:
    share = WorkerInfo(rank, size).get_shard(samples)
    assert (share.start, share.stop) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"MS_ROLE": "MS_PSERVER"}, "MS_ROLE: must be MS_SCHED or MS_WORKER, got 'MS_PSERVER'"),
        ({"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2"}, "MS_SCHED_HOST, MS_SCHED_PORT is not set"),
    ],
)
def test_a_wrong_topology_is_named(environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MS_ROLE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    init_distributed.cache_clear()
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        init_distributed()


def test_without_a_role_a_process_trains_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_ROLE", raising=False)
    init_distributed.cache_clear()
    assert init_distributed() == WorkerInfo(rank=0, size=1)
