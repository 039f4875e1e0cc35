import math

import pytest
from kfp import dsl

from ..component import select_best


@pytest.fixture
def models(tmp_path):
    """Write models with the accuracies 0.5, 0.75 and 0.75."""
    found = []
    for index, accuracy in enumerate((0.5, 0.75, 0.75)):
        path = tmp_path / str(index)
        (path / "checkpoint").mkdir(parents=True)
        (path / "checkpoint" / "weights").write_text(str(index))
        metadata = {"accuracy": accuracy, "framework": "mindspore"}
        found.append(dsl.Model(name=f"model-{index}", uri=str(path), metadata=metadata))
    return found


@pytest.mark.parametrize(
    ("logged", "options", "index", "value"),
    [
        (None, {"metric": "accuracy"}, 1, 0.75),
        (None, {"metric": "accuracy", "direction": "min"}, 0, 0.5),
        ([{"rmse": 3.0}, {"rmse": 2}, {"rmse": 1.0}], {"metric": "rmse"}, 2, 1.0),
        ([{"rmse": 3.0}, {"rmse": math.nan}, {}], {"metric": "rmse"}, 0, 3.0),
        ([{"wins": 1}, {"wins": 3}, {"wins": 2}], {"metric": "wins", "direction": "max"}, 1, 3.0),
    ],
)
def test_best_model_is_copied_with_its_metadata(models, tmp_path, capsys, logged, options, index, value) -> None:
    """Best model is copied with its metadata."""
    metrics = logged and [dsl.Metrics(metadata=metadata) for metadata in logged]
    best = dsl.Model(uri=str(tmp_path / "best"), metadata={})
    assert select_best.python_func(models=models, best=best, metrics=metrics, **options) == (index, value)
    assert (tmp_path / "best" / "checkpoint" / "weights").read_text() == str(index)
    assert best.metadata == {
        **models[index].metadata,
        options["metric"]: value,
        "selected_from": models[index].uri,
        "selected_index": index,
    }
    assert f"model {index} of 3 is the best: {options['metric']} {value:g} of " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": []}, "models: is empty, expected at least one"),
        ({"metrics": [dsl.Metrics(metadata={})]}, "metrics: must be one per model, 3, got 1"),
        ({"direction": "up"}, "direction: must be max or min, got 'up'"),
        ({"metric": "wins"}, "metric 'wins': unknown"),
        ({"metric": "rmse"}, "rmse: no model has a value, all 3 are NaN or missing"),
        ({"metric": "framework", "direction": "max"}, "framework: must be a number, got 'mindspore' of model 0"),
    ],
)
def test_invalid_argument_is_refused(models, tmp_path, options, message) -> None:
    """Invalid argument is refused."""
    from kfp_mindspore.errors import UserError

    best = dsl.Model(uri=str(tmp_path / "best"), metadata={})
    with pytest.raises(UserError, match=message):
        select_best.python_func(**{"models": models, "best": best, "metric": "accuracy", **options})
    assert not (tmp_path / "best").exists()
