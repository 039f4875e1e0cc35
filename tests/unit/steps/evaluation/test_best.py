"""The best of several models: by which metric, and which arguments are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kfp import dsl

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.steps.evaluation.best import select_best_model


def make_models(root: Path, values: Sequence[Any], metric: str) -> list[dsl.Model]:
    """Return models with a file each; None for one without the metric."""
    models = []
    for index, value in enumerate(values):
        folder = root / str(index)
        folder.mkdir()
        (folder / "model.mindir").write_text(f"model {index}")
        metadata = {"framework": "mindspore", **({} if value is None else {metric: value})}
        model = dsl.Model(name=f"model-{index}", uri=f"s3://bucket/{index}", metadata=metadata)
        model.custom_path = str(folder)
        models.append(model)
    return models


def select(root: Path, values: Sequence[Any], metric: str = "accuracy", **options: Any) -> tuple[int, float, dsl.Model]:
    models = make_models(root, values, metric)
    best = dsl.Model(name="best", uri="s3://bucket/best")
    best.custom_path = str(root / "best")
    return (*select_best_model(models, best, models, metric=metric, **options), best)


@pytest.mark.parametrize(
    ("metric", "direction", "values", "index"),
    [
        ("accuracy", "", [0.5, 0.9, 0.7], 1),
        ("rmse", "", [0.5, 0.9, 0.1], 2),
        ("accuracy", "min", [0.5, 0.9, 0.7], 0),
        ("mine", "max", [1, 3, 2], 1),
        # The first of equal ones.
        ("accuracy", "", [0.5, 0.9, 0.9], 1),
        ("rmse", "", [0.0, -0.0, 0.0], 0),
        # Neither NaN nor a missing value is better than a number.
        ("accuracy", "", [math.nan, 0.1, None], 1),
        ("rmse", "", [None, math.nan, 9.0], 2),
        ("accuracy", "", [math.inf, 0.9], 0),
    ],
)
def test_model_with_best_value_is_copied(
    metric: str, direction: str, values: list[Any], index: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, value, best = select(tmp_path, values, metric, direction=direction)

    assert (found, value) == (index, values[index])
    assert (tmp_path / "best" / "model.mindir").read_text() == f"model {index}"
    assert best.metadata == {
        "framework": "mindspore",
        metric: value,
        "selected_from": f"s3://bucket/{index}",
        "selected_index": index,
    }
    assert f"model {index} of {len(values)} is the best: {metric} {value:.6g} of " in capsys.readouterr().out


@given(st.lists(st.one_of(st.none(), st.just(math.nan), st.floats(-5, 5)), min_size=1, max_size=6), st.booleans())
def test_no_model_surpasses_selected_one(
    tmp_path_factory: pytest.TempPathFactory, values: list[float | None], is_maximum: bool
) -> None:
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    root = tmp_path_factory.mktemp("models")
    if not numbers:
        with pytest.raises(UserError, match="mine: no model has a value"):
            select(root, values, "mine", direction="max")
        return
    index, value, _ = select(root, values, "mine", direction="max" if is_maximum else "min")
    assert value == (max if is_maximum else min)(numbers)
    assert index == values.index(value)


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        ([], {}, "models: is empty, expected at least one"),
        ([None, math.nan], {}, "accuracy: no model has a value, all 2 are NaN or missing"),
        ([0.5, "0.9"], {}, "accuracy: must be a number, got '0.9' of model 1"),
        ([True], {}, "accuracy: must be a number, got True of model 0"),
        ([0.5], {"direction": "up"}, "direction"),
        ([0.5], {"metric": "mine"}, "mine"),
    ],
)
def test_models_that_cannot_be_compared_are_refused(
    values: list[Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((UserError, ValidationError)) as caught:
        select(tmp_path, values, **options)
    assert message in str(caught.value)
    assert not (tmp_path / "best").exists()


def test_metrics_are_one_per_model(tmp_path: Path) -> None:
    models = make_models(tmp_path, [0.5, 0.6], "accuracy")
    with pytest.raises(UserError, match="metrics: must be one per model, 2, got 1"):
        select_best_model(models, dsl.Model(), models[:1], metric="accuracy")


def test_model_without_directory_is_refused(tmp_path: Path) -> None:
    (model,) = make_models(tmp_path, [0.5], "accuracy")
    model.custom_path = str(tmp_path / "gone")
    with pytest.raises(UserError, match=f"models: model 0 has no directory {tmp_path / 'gone'}"):
        select_best_model([model], dsl.Model(), [model], metric="accuracy")
