import pytest
from kfp import dsl

from ..component import index_pictures

pytest_plugins = ["kfp_mindspore.testing"]


def test_model_that_is_no_bundle_fails_step(run_component, tmp_path) -> None:
    """A model without a bundle fails the step with the reason."""
    (tmp_path / "model").mkdir()
    with pytest.raises(RuntimeError, match=r"signature\.json"):
        run_component(index_pictures, {"model": (dsl.Model, tmp_path / "model")}, source=str(tmp_path))
