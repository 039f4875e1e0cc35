import pytest

from ..component import create_language_model

pytest_plugins = ["kfp_mindspore.testing"]


def test_missing_input_fails_step(run_component) -> None:
    """A missing input fails the step with the reason."""
    with pytest.raises(RuntimeError, match="data: give either"):
        run_component(create_language_model)
