from typing import Any

import pytest
from kfp import dsl

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.runs.sources import compile_pipeline, compile_text
from kfp_mindspore.runs.spec import convert_arguments


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def check(dataset: dsl.Input[dsl.Dataset], metric: str = "accuracy", threshold: float = 0.5) -> float:
    return threshold


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def load(dataset: dsl.Output[dsl.Dataset], task: str = ""):
    pass


@dsl.pipeline(name="gates")
def gates(metric: str = "accuracy", threshold: float = 0.9, nested: float = 0.1, task: str = ""):
    data = load(task=task).outputs["dataset"]
    first = check(dataset=data, metric=metric, threshold=threshold)
    with dsl.If(first.output > 0.5):
        check(dataset=data, threshold=nested)
    check(dataset=data, threshold=first.output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, ""),
        ({"threshold": 95.0}, r"step check: threshold: must be 0 to 1, the range of accuracy, got 95"),
        ({"threshold": "95"}, r"step check: threshold: must be 0 to 1"),
        ({"metric": "perplexity", "threshold": 0.5}, r"at least 1, the range of perplexity"),
        ({"metric": "rmse", "threshold": 95.0}, ""),
        ({"metric": "acc"}, r"step check: metric 'acc': unknown; did you mean accuracy\?"),
        ({"metric": ""}, ""),
        ({"metric": "", "threshold": 95.0}, ""),
        (
            {"metric": "", "threshold": -1.0},
            r"must be 0 to 1, the range of accuracy or .*at least 0, the range of rmse",
        ),
        ({"metric": "", "threshold": 0.5, "task": "language_model"}, r"at least 1, the range of perplexity, got 0\.5"),
        ({"task": "regression"}, r"step check: metric accuracy: is for classification.*, not regression"),
        ({"nested": 2.0}, r"step check-2: threshold: must be 0 to 1, the range of accuracy, got 2"),
    ],
)
def test_threshold_is_checked_before_the_run(arguments: dict[str, Any], message: str) -> None:
    spec = compile_pipeline(gates)
    if not message:
        convert_arguments(spec, arguments)
        return
    with pytest.raises(ValidationError, match=message):
        convert_arguments(spec, arguments)


def test_default_threshold_is_checked_when_compiled() -> None:
    @dsl.pipeline(name="wrong")
    def wrong(threshold: float = 95.0):
        check(dataset=load().outputs["dataset"], threshold=threshold)

    with pytest.raises(ValidationError, match="pipeline wrong is invalid: step check: threshold: must be 0 to 1"):
        compile_text(wrong)
