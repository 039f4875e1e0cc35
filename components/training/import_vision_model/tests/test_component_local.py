import pytest

from ..component import import_vision_model

pytest_plugins = ["kfp_mindspore.testing"]


def test_missing_source_fails_step(run_component, tmp_path) -> None:
    """A missing source fails the step with the reason."""
    with pytest.raises(RuntimeError, match="absent: no such directory"):
        run_component(import_vision_model, source=str(tmp_path / "absent"))
