import pytest
from kfp import dsl

from ..component import finetune_language_model


def test_source_is_needed_once(tmp_path) -> None:
    """Neither or both sources are refused before anything is loaded."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="data: give either"):
        finetune_language_model.python_func(
            model=dsl.Model(uri=str(tmp_path / "model")),
            tuned=dsl.Model(uri=str(tmp_path / "tuned")),
            adapter=dsl.Model(uri=str(tmp_path / "adapter")),
            held_out_examples=dsl.Dataset(uri=str(tmp_path / "held_out_examples")),
            metrics=dsl.Metrics(uri=str(tmp_path / "metrics")),
            curves=dsl.HTML(uri=str(tmp_path / "curves")),
        )
