import pytest
from kfp import dsl, local

from ..component import select_best

pytest_plugins = ["kfp_mindspore.testing"]


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def train(rate: float, model: dsl.Output[dsl.Model], metrics: dsl.Output[dsl.Metrics]):
    """Write a model whose loss is the rate's distance to 0.1."""
    from pathlib import Path

    Path(model.path).mkdir(parents=True)
    Path(model.path, "weights").write_text(str(rate))
    model.metadata["framework"] = "mindspore"
    metrics.log_metric("loss", abs(rate - 0.1))


def run(tmp_path, metric):
    """Train with three rates in a loop and select the best model."""
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"))

    @dsl.pipeline(name="search")
    def search() -> int:  # type: ignore[empty-body]
        with dsl.ParallelFor([0.9, 0.1, 0.5]) as rate:
            trained = train(rate=rate)
        best = select_best(
            models=dsl.Collected(trained.outputs["model"]),
            metrics=dsl.Collected(trained.outputs["metrics"]),
            metric=metric,
            direction="min",
        )
        return best.outputs["index"]

    return search().output


def test_best_model_of_loop_is_selected(local_home, tmp_path) -> None:
    """Best model of a loop is selected."""
    assert run(tmp_path, "loss") == 1
    (file,) = (tmp_path / "root").glob("*/select-best/best/weights")
    assert file.read_text() == "0.1"


def test_missing_metric_fails_step(local_home, tmp_path) -> None:
    """Missing metric fails the step."""
    with pytest.raises(RuntimeError):
        run(tmp_path, "cost")
