import pytest
from kfp import dsl

from ..component import finetune_dual_encoder


def test_source_is_needed_once(tmp_path) -> None:
    """Neither or both sources are refused before anything is loaded."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="data: give either"):
        finetune_dual_encoder.python_func(
            model=dsl.Model(uri=str(tmp_path / "model")),
            tuned=dsl.Model(uri=str(tmp_path / "tuned")),
            metrics=dsl.Metrics(uri=str(tmp_path / "metrics")),
            curves=dsl.HTML(uri=str(tmp_path / "curves")),
        )
