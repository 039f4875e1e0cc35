"""Points of learning curves in MLflow and TensorBoard, whatever happens to the training or to the server."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from kfp_mindspore.data import load_dataset
from tests.support.mindspore_processes import MindSporeProcesses, start_gang
from tests.support.remote.mlflow_server import MlflowServer

pytestmark = pytest.mark.mindspore

SCRIPT = Path(__file__).with_name("training_script.py")
STEPS = 36
SECONDS = 300.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return load_dataset("digits", tmp_path_factory.mktemp("data") / "digits").path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with MlflowServer(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture
def environment(dataset: Path, server: MlflowServer, tmp_path: Path) -> Mapping[str, str]:
    return {
        "KFP_MINDSPORE_DATASET_DIR": str(dataset),
        "MLFLOW_TRACKING_URI": server.url,
        "MLFLOW_EXPERIMENT_NAME": tmp_path.name,
    }


def assert_complete(server: MlflowServer, experiment: str, epochs: int) -> None:
    """Assert that an experiment's one run has finished, and has each step and each epoch once."""
    run = server.get_run(experiment)
    assert run.info.status == "FINISHED"
    assert server.get_steps(run.info.run_id, "step_loss") == list(range(1, epochs * STEPS + 1))
    for name in ("loss", "epoch", "accuracy", "learning_rate"):
        assert server.get_steps(run.info.run_id, name) == list(range(STEPS, epochs * STEPS + 1, STEPS)), name


def test_killed_training_continues_its_curves(
    mindspore_processes: MindSporeProcesses, server: MlflowServer, environment: Mapping[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "run"
    command = [SCRIPT, root, "--checkpoint-steps", "10", "--trackers", "mlflow", "tensorboard"]
    process = mindspore_processes.start([*command, "--hold-step", str(2 * STEPS + 25)], root, environment=environment)
    process.wait_for(root / "in-step", SECONDS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    code, output = mindspore_processes.run(command, root, environment=environment)

    assert code == 0, output
    assert "resuming from" in output
    assert_complete(server, tmp_path.name, 4)
    run = server.get_run(tmp_path.name)
    assert run.data.params["epochs"] == "4"
    assert run.data.params["optimizer"] == "Adam"
    assert len(run.data.params["dataset_digest"]) == 64
    assert run.data.tags["checkpoint"] == str(root / "output" / "checkpoint")

    events = EventAccumulator(str(root / "checkpoints" / "tensorboard"), {"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("step_loss")] == list(range(1, 4 * STEPS + 1))
    assert [event.step for event in events.Scalars("accuracy")] == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]


def test_gang_logs_each_point_once(
    mindspore_processes: MindSporeProcesses, server: MlflowServer, environment: Mapping[str, str], tmp_path: Path
) -> None:
    members = start_gang(mindspore_processes, [SCRIPT, tmp_path / "run"], tmp_path / "run", 3, environment)

    for member in members:
        code, output = member.finish()
        assert code == 0, output
    assert_complete(server, tmp_path.name, 4)
    assert server.get_run(tmp_path.name).data.params["workers"] == "3"


def test_points_wait_for_server_that_is_down(
    mindspore_processes: MindSporeProcesses, server: MlflowServer, environment: Mapping[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "run"
    server.stop()
    code, output = mindspore_processes.run([SCRIPT, root], root, environment=environment)

    assert code == 0, output
    assert "MLflow has not received 148 of the training's points" in output
    assert "metrics.jsonl has every epoch" in output

    server.start()
    code, output = mindspore_processes.run([SCRIPT, root, "--epochs", "6"], root, environment=environment)
    assert code == 0, output
    assert "has not received" not in output
    assert_complete(server, tmp_path.name, 6)


def test_terminated_training_ends_its_run(
    mindspore_processes: MindSporeProcesses, server: MlflowServer, environment: Mapping[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "run"
    process = mindspore_processes.start([SCRIPT, root, "--epochs", "100000"], root, environment=environment)
    server.wait_for_run(tmp_path.name)
    process.send_signal(signal.SIGTERM)

    assert process.wait() == 143
    assert server.get_run(tmp_path.name).info.status == "KILLED"
