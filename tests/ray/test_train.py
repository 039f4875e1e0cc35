"""MindSporeTrainer: `fit` on Ray Train's workers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.msjob import LocalBackend, MSJobClient, build_msjob
from tests.ray import loops

pytestmark = pytest.mark.mindspore


def run_trainer(
    tmp_path: Path, workers: Any, config: dict[str, Any] | None = None, failures: int = 0, cpus: int = 1
) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig

    from kfp_mindspore.ray import MindSporeTrainer

    return MindSporeTrainer(
        loops.train,
        train_loop_config=config or {},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": cpus}),
        run_config=RunConfig(
            name="run",
            storage_path=str(tmp_path),
            failure_config=FailureConfig(max_failures=failures),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()


def read_weights(path: Path | str) -> dict[str, np.ndarray]:
    import mindspore

    found = Checkpoint.open(path)
    parameters = mindspore.load_checkpoint(str(found.network_file))
    return {name: value.asnumpy() for name, value in parameters.items()}


@pytest.fixture(scope="module")
def result(ray_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the result of an undisturbed run with two workers."""
    return run_trainer(tmp_path_factory.mktemp("ray"), 2)


def test_two_workers_train_like_msjob(result: Any, isolated_home: Path) -> None:
    client = MSJobClient(LocalBackend())
    command = [sys.executable, loops.__file__, "--output-dir", str(isolated_home / "out")]
    client.create_job(build_msjob("ray-peer", command=command, workers=2))
    client.wait_for_job_conditions("ray-peer")
    expected, found = read_weights(isolated_home / "out" / "checkpoint"), read_weights(result.checkpoint.path)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


def test_metrics_are_reported_with_checkpoints(result: Any) -> None:
    assert result.metrics["epoch"] == loops.EPOCHS
    assert result.metrics["step"] == 6 * loops.EPOCHS
    assert 0 < result.metrics["loss"] < 1.5
    assert len(result.best_checkpoints) == 2


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_killed_worker_resumes_with_the_same_weights(rank: int, result: Any, tmp_path: Path) -> None:
    marker = str(tmp_path / "killed")
    found = run_trainer(tmp_path, 2, {"callbacks": lambda: loops.kill_once(marker, rank, 15)}, failures=1)
    assert Path(marker).exists()
    expected = read_weights(result.checkpoint.path)
    for name, value in read_weights(found.checkpoint.path).items():
        np.testing.assert_array_equal(expected[name], value)


def test_fewer_elastic_workers_compute_result_of_all(result: Any, tmp_path: Path) -> None:
    # Ray has four CPUs.
    found = run_trainer(tmp_path, (1, 2), cpus=3)
    assert Checkpoint.open(found.checkpoint.path).training["workers"] == 1
    expected = read_weights(result.checkpoint.path)
    for name, value in read_weights(found.checkpoint.path).items():
        np.testing.assert_allclose(expected[name], value, atol=1e-6)


@pytest.mark.parametrize(
    ("scaling", "device"),
    [
        ({}, "auto"),
        ({"resources_per_worker": {"CPU": 2}}, "auto"),
        ({"use_gpu": True}, "GPU"),
        ({"use_gpu": True, "resources_per_worker": {"GPU": 0.5}}, "GPU"),
        ({"resources_per_worker": {"NPU": 1}}, "Ascend"),
    ],
)
def test_resources_imply_device(scaling: dict[str, Any], device: str) -> None:
    from ray.train import ScalingConfig

    from kfp_mindspore.ray import MindSporeConfig, MindSporeTrainer
    from kfp_mindspore.ray.train import get_ray_device

    assert get_ray_device(ScalingConfig(num_workers=2, **scaling)) == device
    trainer = MindSporeTrainer(loops.train, scaling_config=ScalingConfig(num_workers=2, **scaling))
    assert trainer.backend_config.device == device
    given = MindSporeConfig(device="CPU")
    trainer = MindSporeTrainer(
        loops.train, mindspore_config=given, scaling_config=ScalingConfig(num_workers=2, **scaling)
    )
    assert trainer.backend_config.device == "CPU"


def test_unknown_device_is_refused() -> None:
    from kfp_mindspore.ray import MindSporeConfig

    with pytest.raises(ValidationError, match="device: must be one of auto, CPU, GPU, Ascend, got 'gpu'"):
        MindSporeConfig(device="gpu")
