import pytest
from kfp import dsl

from ..component import finetune_dual_encoder

pytest_plugins = ["kfp_mindspore.testing"]


def test_missing_input_fails_step(run_component, tmp_path) -> None:
    """A missing input fails the step with the reason."""
    with pytest.raises(RuntimeError, match="data: give either"):
        run_component(finetune_dual_encoder, {"model": (dsl.Model, tmp_path)})
