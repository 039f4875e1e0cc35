import pytest
from kfp import dsl

from ..component import import_vision_model


def test_missing_source_is_named(tmp_path) -> None:
    """A source that does not exist is named."""
    from kfp_mindspore.errors import NotFoundError

    with pytest.raises(NotFoundError, match="absent: no such directory"):
        import_vision_model.python_func(model=dsl.Model(uri=str(tmp_path / "model")), source=str(tmp_path / "absent"))
