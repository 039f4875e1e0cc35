import json
import math
import sys
from types import ModuleType

import pytest
from kfp import dsl

from ..component import evaluate_function


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    """Evaluate a runner without a graph by a given function."""
    from kfp_mindspore import mindir

    class Runner:
        def __init__(self, path):
            self.path = path

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    def call(simulate, **arguments):
        module = ModuleType("a_simulation")
        module.play = simulate
        monkeypatch.setitem(sys.modules, "a_simulation", module)
        monkeypatch.setattr(mindir, "ModelRunner", Runner)
        monkeypatch.setenv("KFP_MINDSPORE_EVENTS", str(tmp_path / "events.jsonl"))
        metrics = dsl.Metrics(metadata={})
        outputs = evaluate_function.python_func(
            bundle=dsl.Model(uri="/bundle"), metrics=metrics, **{"function": "a_simulation:play", **arguments}
        )
        return outputs, metrics.metadata

    return call


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ({}, True),
        ({"threshold": 0.75}, True),
        ({"threshold": 0.8}, False),
        ({"threshold": 0.8, "lower_is_better": True}, True),
        ({"threshold": 0.7, "lower_is_better": True}, False),
    ],
)
def test_first_metric_decides_gate(evaluate, tmp_path, capsys, arguments, passed) -> None:
    """First metric decides the gate."""

    def play(runner, games):
        # KFP turns the integer 4 into 4.0, and a pipeline parameter into a text.
        assert (runner.path, games, type(games)) == ("/bundle", 4, int)
        return {"win_rate": 3 / games, "games": games}

    for games in (4.0, "4"):
        outputs, metrics = evaluate(play, arguments={"games": games}, **arguments)
        assert outputs == ("win_rate", 0.75, passed)
        assert (metrics["win_rate"], metrics["games"], metrics.get("threshold")) == (
            0.75,
            4,
            arguments.get("threshold"),
        )
    event = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert (event["kind"], event["metric"], event["passed"]) == ("gate", "win_rate", passed)
    verdict = "no threshold" if not arguments else f"threshold {arguments['threshold']}: "
    assert capsys.readouterr().out.startswith(f"win_rate 0.75, {verdict}{'passed' * passed if arguments else ''}")


def test_nan_passes_no_gate(evaluate) -> None:
    """Nan passes no gate."""
    for lower_is_better in (False, True):
        outputs, _ = evaluate(lambda runner: {"cost": math.nan}, threshold=1.0, lower_is_better=lower_is_better)
        assert outputs[2] is False


@pytest.mark.parametrize(
    ("function", "returned", "message"),
    [
        ("a_simulation", {}, "function: must be 'module:callable', got 'a_simulation'"),
        ("a_simulation:run", {}, "function 'a_simulation:run': a_simulation has no callable 'run'"),
        ("no_simulation:run", {}, "function: no module 'no_simulation'"),
        ("a_simulation:play", {}, "must return numbers by name, got {}"),
        ("a_simulation:play", 0.5, "must return numbers by name, got 0.5"),
        ("a_simulation:play", {"won": "all"}, "must return numbers by name, got {'won': 'all'}"),
    ],
)
def test_invalid_function_is_refused(evaluate, function, returned, message) -> None:
    """Invalid function is refused."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError) as caught:
        evaluate(lambda runner: returned, function=function)
    assert message in caught.value.message
