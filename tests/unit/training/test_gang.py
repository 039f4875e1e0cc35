"""One worker, two and three compute the same; one gang of each size runs all trainings of gang_script.py."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.settings import PEER_LOST_EXIT_CODE
from tests.support.mindspore_processes import MindSporeProcess, MindSporeProcesses, start_gang
from tests.support.ports import reserve_port

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]
SCRIPT = Path(__file__).with_name("gang_script.py")
NAMES = ("lenet", "uneven", "float16", "own_step", "batch_norm")


@pytest.fixture(scope="module")
def gangs(
    mindspore_processes: MindSporeProcesses, digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Any]:
    """Values and weights of each rank by the size of the gang; "codes" are the exit codes of the gang of 2."""
    root = tmp_path_factory.mktemp("gangs")
    environment = {"KFP_MINDSPORE_DATASET_DIR": str(digits_dataset), "PIECES": "1"}

    def start(size: int, names: Sequence[str], **variables: str) -> list[MindSporeProcess]:
        directory = root / str(size)
        given = {**environment, **variables}
        if size == 1:
            return [mindspore_processes.start([SCRIPT, directory, *names], directory, environment=given)]
        return start_gang(mindspore_processes, [SCRIPT, directory, *names], directory, size, given)

    started = {
        # One worker computes BatchNorm in two pieces, whose samples are the parts of two workers.
        1: start(1, NAMES, PIECES="2"),
        # The survivor notices the lost worker after this time.
        2: start(2, [*NAMES, "lose"], MS_NODE_TIMEOUT="20"),
        # An elastic job with three of four workers: each computes its part in two pieces.
        3: start(3, NAMES[:2], KFP_MINDSPORE_REQUESTED_WORKERS="4"),
    }
    trainjob = start_trainjob(mindspore_processes, [SCRIPT, root / "trainjob", "lenet"], root / "trainjob", environment)
    codes = [process.wait(300) for process in trainjob]
    found: dict[Any, Any] = {"trainjob": ([dict(np.load(file)) for file in (root / "trainjob").glob("*.npz")], codes)}
    for size, processes in started.items():
        results = [process.finish(300) for process in processes]
        for rank in range(size):
            file = root / str(size) / f"values-{rank}.json"
            assert file.exists(), "---\n".join(output for _, output in results)
            found[size, rank] = (json.loads(file.read_text()), dict(np.load(file.with_name(f"weights-{rank}.npz"))))
        found[size] = [code for code, _ in results]
        found[size, "output"] = "".join(output for _, output in results)
    return found


def start_trainjob(
    processes: MindSporeProcesses, command: Sequence[object], directory: Path, environment: dict[str, str]
) -> list[MindSporeProcess]:
    """Start two processes with the variables of Kubeflow Trainer's jax policy, and no other launcher's."""
    common = {**environment, "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": f"localhost:{reserve_port()}"}
    return [
        processes.start(command, directory, environment={**common, "JAX_PROCESS_ID": str(rank)}) for rank in range(2)
    ]


def compare(first: dict[str, Any], second: dict[str, Any], prefix: str) -> float:
    names = [name for name in first if name.startswith(prefix)]
    assert names
    return max(float(np.abs(first[name] - second[name]).max()) for name in names)


@pytest.mark.parametrize(
    ("size", "name", "steps", "limit"),
    [
        (2, "lenet", 50, 1e-5),
        (3, "lenet", 50, 1e-5),
        # Batches of 32, 32 and 2: of the last one a worker of three has no sample, and of two none for a second piece.
        (2, "uneven", 6, 1e-5),
        (3, "uneven", 6, 1e-5),
        (2, "float16", 20, 1e-3),
        # TrainOneStepCell reduces its gradients itself.
        (2, "own_step", 16, 1e-5),
    ],
)
def test_workers_compute_what_one_does(gangs: dict[Any, Any], size: int, name: str, steps: int, limit: float) -> None:
    values, weights = gangs[1, 0]
    assert values[name]["steps"] == steps
    for rank in range(size):
        own_values, own_weights = gangs[size, rank]
        assert compare(weights, own_weights, f"{name}/") < limit
        assert own_values[name]["steps"] == steps
        assert own_values[name]["metrics"] == pytest.approx(values[name]["metrics"], abs=10 * limit)
    assert all(gangs[size, rank][0][name]["metrics"] == gangs[size, 0][0][name]["metrics"] for rank in range(size))


def test_trainjob_of_two_nodes_computes_what_msjob_does(gangs: dict[Any, Any]) -> None:
    trained, codes = gangs["trainjob"]
    assert codes == [0, 0]
    assert len(trained) == 2
    for weights in trained:
        assert compare(gangs[2, 0][1], weights, "lenet/") < 1e-6


def test_batch_norm_of_workers_is_that_of_one_worker_in_as_many_pieces(gangs: dict[Any, Any]) -> None:
    """Statistics of a batch are those of a worker's part; the running ones are averaged."""
    weights, first, second = gangs[1, 0][1], gangs[2, 0][1], gangs[2, 1][1]
    trained = {name for name in weights if name.startswith("batch_norm/") and "moving" not in name}
    running = {name for name in weights if name.startswith("batch_norm/")} - trained
    assert len(running) == 2
    assert all(np.abs(weights[name] - first[name]).max() < 1e-5 for name in trained)
    assert all(np.array_equal(first[name], second[name]) for name in running)


@pytest.mark.parametrize("size", [2, 3])
def test_slow_worker_is_named(gangs: dict[Any, Any], size: int) -> None:
    values, _ = gangs[size, 0]
    seconds = values["uneven"]["history"][0]["rank_seconds"]
    assert len(seconds) == size
    assert max(range(size), key=seconds.__getitem__) == 1
    assert seconds[1] >= 0.2
    assert any("worker 1 is slow" in message for message in values["warnings"])
    assert not gangs[size, 1][0]["warnings"]
    assert "rank_seconds" not in gangs[1, 0][0]["uneven"]["history"][0]


def test_worker_whose_peer_is_lost_exits_with_its_code(gangs: dict[Any, Any]) -> None:
    _, survivor, lost = gangs[2]
    assert lost == 9
    assert survivor == PEER_LOST_EXIT_CODE, gangs[2, "output"]
    assert "worker 0 of 2: a peer is lost" in gangs[2, "output"]
    # MindSpore 2.9 sometimes ends a worker with SIGSEGV after its script has finished.
    assert set(gangs[3][1:]) <= {0, -signal.SIGSEGV}, gangs[3, "output"]
