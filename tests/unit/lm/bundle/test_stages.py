"""A model cut at a layer computes bit-equal logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from kfp_mindspore.cli.lm import lm
from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.bundle.causal import import_model, read_model
from kfp_mindspore.lm.bundle.stages import split_model, split_weights
from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.serving.runner import CausalRunner
from kfp_mindspore.lm.sources.model import SourceModel
from tests.support.language.tiny_language_model import write_source
from tests.unit.lm.serving.test_runner import GEMMA3, GPT2, LLAMA, SIZES, SMOLLM3, make_weights

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LLAMA, id="llama"),
        pytest.param(DecoderConfig(**{**GPT2.to_dict(), "layers": 3}), id="gpt2"),
        pytest.param(SMOLLM3, id="smollm3"),
        pytest.param(GEMMA3, id="gemma3"),
    ],
)
def test_two_runners_equal_one_bit_by_bit(config: DecoderConfig) -> None:
    model = SourceModel(config, make_weights(config), "", "", {}, "Test")
    whole = CausalRunner(config, model.weights, slots=2, max_length=40)
    first, second = (
        CausalRunner(stage.config, stage.weights, slots=2, max_length=40) for stage in split_weights(model, 1)
    )
    random = np.random.default_rng(5)
    texts = [random.integers(0, SIZES["vocabulary_size"], size).astype(np.int32) for size in (21, 7)]
    for slot, text in enumerate(texts):
        for start in range(0, len(text), 16):
            part = text[start : start + 16]
            states = first.prefill(slot, part, start, all_positions=True)
            assert np.array_equal(second.prefill(slot, states, start), whole.prefill(slot, part, start))
    positions = np.array([21, 7], np.int32)
    for step in range(4):
        ids = np.array([step, 9], np.int32)
        states = first.decode(range(2), ids, positions + step)
        expected = whole.decode(range(2), ids, positions + step)
        assert np.array_equal(second.decode(range(2), states, positions + step), expected)


def test_each_stage_has_its_own_weights_only(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    import_model(write_source(tmp_path / "source"), bundle)
    arguments = ["split", str(bundle), "--layer", "1", "-o", str(tmp_path / "stages")]
    result = CliRunner().invoke(lm, arguments, catch_exceptions=False)
    assert "first and second, verified: they differ by 0.0e+00 of the largest logit" in result.output
    whole, first, second = (
        load_file(path / "weights.safetensors")
        for path in (bundle, tmp_path / "stages" / "first", tmp_path / "stages" / "second")
    )
    sizes = [sum(array.nbytes for array in weights.values()) for weights in (whole, first, second)]
    # A tied head is the one weight that both stages have.
    assert sizes[1] + sizes[2] == sizes[0] + whole["embedding"].nbytes
    assert sorted(first) == sorted(["embedding", *(name for name in whole if name.startswith("layers.0."))])
    assert not any(name.startswith("layers.1.") or name == "embedding" for name in second)
    with pytest.raises(UserError, match=r"metadata\.kind: must be causal-lm, got causal-lm-first"):
        read_model(tmp_path / "stages" / "first")
    for layer in (0, 2):
        with pytest.raises(UserError, match=f"--layer: must be from 1 to 1, the model has 2 layers, got {layer}"):
            split_model(bundle, layer, tmp_path / "other")
