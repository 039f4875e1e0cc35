import pytest
from kfp import dsl

from ..component import ray_job

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": []}, "command: must be a Python command, got"),
        ({"command": ["bash", "train.sh"]}, "command: must be a Python command, got .*bash"),
        ({"workers": 0}, "workers: must be an integer ≥ 1, got 0"),
    ],
)
def test_invalid_argument_is_refused(local_home, tmp_path, arguments, message) -> None:
    """Invalid argument is refused before Ray is started."""
    from kfp_mindspore.errors import UserError

    artifacts = {
        name: kind(uri=str(tmp_path / name), metadata={})
        for name, kind in (("model", dsl.Model), ("metrics", dsl.Metrics), ("curves", dsl.HTML))
    }
    with pytest.raises(UserError, match=message):
        ray_job.python_func(**artifacts, **{"command": ["python", "train.py"], **arguments})
