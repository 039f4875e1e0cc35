"""T5 directories become bundles whose logits equal a float64 forward pass, and whose slots equal single answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig
from kfp_mindspore.lm.seq2seq_bundle import build_runner, read_seq2seq_model
from kfp_mindspore.lm.serving.greedy import compute_steps
from kfp_mindspore.lm.serving.seq2seq_runner import Seq2SeqRunner
from kfp_mindspore.lm.sources.t5 import read_t5
from tests.support.language.tiny_t5 import T5, V1_1, compute_logits, write_t5

pytestmark = pytest.mark.mindspore


@pytest.mark.slow
@pytest.mark.parametrize("config", [T5, V1_1], ids=["t5", "t5-v1.1"])
def test_imported_logits_equal_float64(config: Seq2SeqConfig, tmp_path: Path) -> None:
    weights = write_t5(tmp_path / "source", config)
    assert run(["lm", "import", str(tmp_path / "source"), "-o", str(tmp_path / "bundle")]) == 0
    signature = ModelBundle.open(tmp_path / "bundle").signature
    assert signature.metadata == {"kind": "seq2seq", "architecture": "t5", "max_length": "64"}
    assert signature.verified["max_abs_diff"] <= 1e-5
    model = read_seq2seq_model(tmp_path / "bundle")
    assert model.config == config
    assert model.generation["temperature"] == 0
    prompts = np.load(tmp_path / "bundle" / "prompts.npz")
    for number in range(2):
        expected = compute_logits(config, weights, prompts[f"ids.{number}"], [0])[0]
        np.testing.assert_allclose(prompts[f"logits.{number}"], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_slots_equal_single_answers(tmp_path: Path) -> None:
    write_t5(tmp_path / "source")
    model = read_t5(tmp_path / "source")
    sources = [np.arange(3, 23, dtype=np.int32), np.array([5, 9, 1], np.int32), np.array([30, 31], np.int32)]
    single = build_runner(model, 1)
    expected = [compute_steps(single, source, 18)[1] for source in sources]
    runner = Seq2SeqRunner(model, slots=3, max_length=64)
    # Sequence 1 begins three tokens later, and moves to slot 0 when sequence 0 has ended.
    found: list[list[np.ndarray]] = [[], [], []]
    running: list[int] = []

    def begin(index: int) -> None:
        found[index].append(runner.prefill(len(running), sources[index], 0))
        running.append(index)

    def step() -> None:
        ids = np.array([found[index][-1].argmax() for index in running], np.int32)
        positions = np.array([len(sources[index]) + len(found[index]) - 1 for index in running], np.int32)
        for index, logits in zip(running, runner.decode(range(len(running)), ids, positions), strict=True):
            found[index].append(logits)

    begin(1)
    step()
    begin(0)
    step()
    begin(2)
    for _ in range(4):
        step()
    runner.write_rows(0, 0, runner.read_rows(2, 0, 8))
    running[0] = running.pop()
    for _ in range(12):
        step()
    assert max(map(len, found)) == 18
    for index, logits in enumerate(found):
        largest = np.abs(expected[index]).max()
        assert np.abs(np.stack(logits) - expected[index][: len(logits)]).max() <= 1e-5 * largest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj: must be one of relu, gated-gelu, got 'gated-silu'"),
        ({"architectures": ["T5EncoderModel"]}, r"got \['T5EncoderModel'\]"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: not supported"),
        ({"auto_map": {"AutoModel": "model.T5"}}, "auto_map: the author's code is never run"),
        ({"eos_token_id": 7}, "post_processor: must end a text with eos_token_id 7, got 1"),
        ({"d_ff": 32}, r"DenseReluDense.wi.weight: shape must be \(32, 16\), got \(24, 16\)"),
        ({"tie_word_embeddings": False}, "lm_head.weight: missing"),
    ],
)
def test_unsupported_directory_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_t5(tmp_path / "source", **changes)
    with pytest.raises(UserError, match=message):
        read_t5(tmp_path / "source")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    write_t5(tmp_path / "source", dropped="decoder.block.1.layer.1.EncDecAttention.k.weight")
    with pytest.raises(UserError, match=r"decoder.block.1.layer.1.EncDecAttention.k.weight: missing"):
        read_t5(tmp_path / "source")


def test_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    write_t5(tmp_path / "source")
    file = tmp_path / "source" / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["shared.weight"].copy()}, file)
    read_t5(tmp_path / "source")
    save_file({**tensors, "lm_head.weight": tensors["shared.weight"] + 1}, file)
    with pytest.raises(UserError, match=r"lm_head.weight: differs from the embedding"):
        read_t5(tmp_path / "source")
