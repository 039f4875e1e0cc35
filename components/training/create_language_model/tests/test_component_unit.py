import pytest
from kfp import dsl

from ..component import create_language_model


def test_source_is_needed_once(tmp_path) -> None:
    """Neither or both sources are refused before anything is loaded."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="data: give either"):
        create_language_model.python_func(model=dsl.Model(uri=str(tmp_path / "model")))
