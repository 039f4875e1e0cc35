"""The output directory of a training run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from kfp_mindspore.errors import UserError
from kfp_mindspore.training import TrainingConfig, fit
from tests.support.small_networks import Perceptron

pytestmark = pytest.mark.mindspore


def test_other_checkpoints_are_not_replaced(tmp_path: Path) -> None:
    other = tmp_path / "checkpoint" / "lenet-1_100.ckpt"
    other.parent.mkdir()
    other.touch()
    network = Perceptron()
    data = (np.zeros((4, 64), np.float32), np.zeros(4, np.int32))
    optimizer = nn.Adam(network.trainable_params())
    with pytest.raises(UserError, match=r"checkpoint: is a directory with other content"):
        fit(network, data, loss=nn.CrossEntropyLoss(), optimizer=optimizer, config=TrainingConfig(output_dir=tmp_path))
    assert other.exists()
    assert not (tmp_path / "metrics.jsonl").exists()
