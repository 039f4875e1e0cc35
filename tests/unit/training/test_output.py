"""The output directory of a training run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mindspore import nn

from kfp_mindspore.errors import UserError
from kfp_mindspore.training import TrainingConfig, fit
from tests.support.models.small_networks import Perceptron

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
    other.unlink()
    for file, content, message in (
        ("metrics.jsonl", '{"mine": 1}', "metrics.jsonl: is a file with other content"),
        ("checkpoint", "precious", "checkpoint: is a file"),
    ):
        output = tmp_path / f"output of {file}"
        output.mkdir()
        (output / file).write_text(content)
        with pytest.raises(UserError, match=message):
            fit(
                network, data, loss=nn.CrossEntropyLoss(), optimizer=optimizer, config=TrainingConfig(output_dir=output)
            )
        assert (output / file).read_text() == content


def test_output_is_no_input(tmp_path: Path) -> None:
    network = Perceptron()
    loss, optimizer = nn.CrossEntropyLoss(), nn.Adam(network.trainable_params())
    initial = tmp_path / "output" / "checkpoint"
    initial.mkdir(parents=True)
    with pytest.raises(UserError, match="output/checkpoint: is in the input"):
        fit(
            network,
            tmp_path / "output",
            loss=loss,
            optimizer=optimizer,
            config=TrainingConfig(output_dir=tmp_path / "output"),
        )
    config = TrainingConfig(output_dir=tmp_path / "output", initial=initial)
    data = (np.zeros((4, 64), np.float32), np.zeros(4, np.int32))
    with pytest.raises(UserError, match="output/checkpoint: is the input"):
        fit(network, data, loss=loss, optimizer=optimizer, config=config)
