import pytest

from ..component import import_language_model

pytest_plugins = ["kfp_mindspore.testing"]


def test_missing_input_fails_step(run_component, tmp_path) -> None:
    """A missing input fails the step with the reason."""
    with pytest.raises(RuntimeError, match="source: give either"):
        run_component(import_language_model)
