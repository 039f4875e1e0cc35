import sys

import pytest
from kfp import dsl

from ..component import sweep_msjob

pytest_plugins = ["kfp_mindspore.testing"]


def _sweep(tmp_path, **arguments):
    """Run the component's function."""
    artifacts = {
        name: kind(uri=str(tmp_path / name), metadata={})
        for name, kind in (
            ("model", dsl.Model),
            ("metrics", dsl.Metrics),
            ("curves", dsl.HTML),
            ("report", dsl.HTML),
            ("trial_table", dsl.Markdown),
        )
    }
    defaults = {"command": ["true"], "space": "rate: [0.1, 0.2]", "objective": "loss"}
    sweep_msjob.python_func(**artifacts, **{**defaults, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": []}, "command: must have at least one part"),
        ({"space": "rate"}, "space: must map parameters to values, got str"),
        ({"space": "rate: {lo: 1}"}, "rate: unknown lo; a parameter has low, high"),
        ({"trials": 0}, "trials: must be an integer ≥ 1, got 0"),
        ({"objective": "acuracy"}, "direction: must be minimize or maximize for 'acuracy'.*did you mean 'accuracy'"),
        ({"pruner": "hyper"}, "pruner: must be one of"),
        ({"workers": 0}, "workers: must be an integer ≥ 1, got 0"),
        ({"space": "rate: {low: 0, high: 1}", "sampler": "grid"}, "grid needs choices, and rate has a range"),
    ],
)
def test_invalid_argument_is_refused(local_home, tmp_path, arguments, message) -> None:
    """Invalid argument is refused."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match=message):
        _sweep(tmp_path, **arguments)
    assert not list(local_home.glob("jobs/*/*"))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no such argument: ' + sys.argv[1])", "no such argument: --rate"),
        ("", "no epoch of it has reported 'loss'"),
    ],
)
@pytest.mark.timeout(120)
def test_trials_that_fail_alike_end_step(local_home, tmp_path, program, message) -> None:
    """Trials that fail alike end the step."""
    from kfp_mindspore.errors import ProcessFailedError
    from kfp_mindspore.msjob import MSJobClient

    with pytest.raises(ProcessFailedError, match=message):
        _sweep(tmp_path, command=[sys.executable, "-c", program], restart_policy="Never")
    assert MSJobClient().list_jobs() == []
