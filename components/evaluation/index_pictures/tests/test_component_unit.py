import pytest
from kfp import dsl

from ..component import index_pictures


def test_invalid_option_is_named(tmp_path) -> None:
    """An invalid option is refused before the model is loaded."""
    from kfp_mindspore.errors import ValidationError

    outputs = {
        name: kind(uri=str(tmp_path / name))
        for name, kind in (("index", dsl.Dataset), ("metrics", dsl.Metrics), ("report", dsl.HTML))
    }
    model = dsl.Model(uri=str(tmp_path / "model"))
    with pytest.raises(ValidationError, match="max_pictures"):
        index_pictures.python_func(model=model, source=str(tmp_path), max_pictures=-1, **outputs)
