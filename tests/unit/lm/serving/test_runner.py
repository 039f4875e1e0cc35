"""Prompts in chunks and single tokens equal the full forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.network.decode_library import compile_library
from kfp_mindspore.lm.network.decoder import Decoder, DecoderConfig, compute_rotations, list_weights
from kfp_mindspore.lm.network.lora import LoraConfig, merge_adapter
from kfp_mindspore.lm.serving import runner as runner_module
from kfp_mindspore.lm.serving.runner import CausalRunner
from kfp_mindspore.lm.sources.peft import write_adapter

pytestmark = pytest.mark.mindspore

SIZES: dict[str, Any] = {
    "vocabulary_size": 120, "width": 32, "layers": 1, "heads": 4, "kv_heads": 2, "head_size": 8, "hidden": 48,
    "max_length": 40,
}  # fmt: skip
LLAMA = DecoderConfig(**{**SIZES, "layers": 2})
QWEN = DecoderConfig(**SIZES, qk_norm=True, qkv_bias=True, tied=True, rope_theta=1e6, epsilon=1e-6)
GPT2 = DecoderConfig(
    **{**SIZES, "kv_heads": 4}, rope_theta=0, norm="layer", activation="gelu_tanh", gated=False, tied=True,
    qkv_bias=True, out_bias=True, mlp_bias=True,
)  # fmt: skip
SMOLLM3 = DecoderConfig(**{**SIZES, "layers": 3}, unrotated=(1,), attention_scale=0.2)
# Chunks are longer than the window.
GEMMA3 = DecoderConfig(
    **{**SIZES, "layers": 3}, norm_twice=True, qk_norm=True, activation="gelu_tanh", window=5, windowed=(0, 2),
    window_theta=1e3,
)  # fmt: skip
OLMO2 = DecoderConfig(**SIZES, joint_qk_norm=True, norm_after=True)


def make_weights(config: DecoderConfig) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = list_weights(config).items()
    return {name: random.normal(len(shape) == 1, 0.15, shape).astype(np.float32) for name, shape in shapes}


def compute_logits(config: DecoderConfig, weights: dict[str, np.ndarray], texts: list[np.ndarray]) -> list[Any]:
    """Return all positions' logits of full forward passes; padding on the right changes no earlier position."""
    tensors = [Tensor(array) for array in (*compute_rotations(config), *weights.values())]
    decoder = Decoder(config)
    head = weights.get("head", weights["embedding"])
    padded = [np.pad(text, (0, 40 - len(text)))[None] for text in texts]
    hidden = [decoder.compile_and_run(Tensor(ids), *tensors).asnumpy()[0] for ids in padded]
    return [states @ head.T for states in hidden]


def compare(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LLAMA, id="llama", marks=pytest.mark.slow),
        pytest.param(QWEN, id="qwen", marks=pytest.mark.slow),
        pytest.param(GPT2, id="gpt2"),
        pytest.param(SMOLLM3, id="smollm3"),
        pytest.param(OLMO2, id="olmo2"),
        pytest.param(GEMMA3, id="gemma3"),
    ],
)
def test_runner_equals_full_forward_pass(config: DecoderConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_LEAST_LENGTH", 16 if config is LLAMA else 40)
    weights = make_weights(config)
    runner = CausalRunner(config, weights, slots=2, max_length=40)
    random = np.random.default_rng(5)
    texts = [random.integers(0, 120, size).astype(np.int32) for size in (25, 9)]
    expected = compute_logits(config, weights, texts)
    compare(runner.prefill(0, texts[0][:14], 0), expected[0][13])
    compare(runner.prefill(0, texts[0][14:24], 14), expected[0][23])
    compare(runner.prefill(1, texts[1][:8], 0, all_positions=True), expected[1][:8])
    last = np.array([text[-1] for text in texts], np.int32)
    positions = np.array([len(text) - 1 for text in texts], np.int32)
    logits = runner.decode(range(2), last, positions)
    compare(logits[0], expected[0][24])
    compare(logits[1], expected[1][8])
    # The second sequence's cache rows moved to the first slot.
    runner.write_rows(0, 0, runner.read_rows(1, 0, 8))
    compare(runner.decode(range(2), last[[1, 1]], positions[[1, 1]])[0], expected[1][8])
    assert runner._cache.shape[3] == (32 if config is LLAMA else 40)
    runner.prefill(0, texts[1][:1], 0)
    assert runner._cache.shape[3] == (16 if config is LLAMA else 40)


# Two chunks, and without the operator two batch sizes, for 16, 32 and 40 tokens.
@pytest.mark.parametrize(("operator", "count"), [pytest.param("none", 12, marks=pytest.mark.slow), ("float32", 6)])
def test_warm_runner_compiles_no_graph_for_longer_sequences(
    operator: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if operator != "none" and compile_library() is None:
        pytest.skip("needs a C compiler")
    monkeypatch.setattr(runner_module, "_LEAST_LENGTH", 16)
    weights = make_weights(GPT2)
    runner = CausalRunner(GPT2, weights, slots=2, max_length=40, decode_operator=operator)
    for compile_graph in runner.list_compilations():
        compile_graph()

    def count_graphs() -> list[int]:
        steps = runner._step._cells.values() if runner._step is not None else ()
        return [len(cell.compile_cache) for cell in (runner._compute_layers, runner._compute_logits, *steps)]

    compiled = count_graphs()
    assert compiled[0] == count
    runner.prefill(0, np.arange(30, dtype=np.int32), 0)
    runner.prefill(1, np.arange(39, dtype=np.int32), 0)
    for count in (1, 2):
        runner.decode(range(count), np.ones(count, np.int32), np.array([31, 39][:count], np.int32))
    assert count_graphs() == compiled


def make_adapter(seed: int, lora: LoraConfig) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    factors = {}
    for layer in range(LLAMA.layers):
        for module in lora.lora_attn_modules:
            height = 16 if module in ("k_proj", "v_proj") else 32
            for kind, shape in (("A", (lora.lora_rank, 32)), ("B", (height, lora.lora_rank))):
                factors[f"layers.{layer}.{module}.lora_{kind}"] = random.normal(0, 0.2, shape).astype(np.float32)
    return factors


@pytest.mark.parametrize("operator", [pytest.param("none", marks=pytest.mark.slow), "float32"])
def test_batch_of_adapters_equals_merged_networks(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "_LEAST_LENGTH", 40)
    weights = make_weights(LLAMA)
    loras = [LoraConfig(3, 6.0, ("q_proj", "k_proj", "output_proj")), LoraConfig(4, 2.0, ("v_proj",))]
    adapters = [make_adapter(seed, lora) for seed, lora in enumerate(loras)]
    for index, (adapter, lora) in enumerate(zip(adapters, loras, strict=True)):
        write_adapter(tmp_path / str(index), adapter, lora)
    limits = {"slots": 4, "max_length": 40, "max_loras": 2, "max_lora_rank": 4}
    runner = CausalRunner(LLAMA, weights, decode_operator=operator, **limits)
    assert runner.adapter_bytes == 4 * 2 * 2 * 4 * (3 * (32 + 64) + 32 + 32)
    texts = [np.random.default_rng(5).integers(0, 120, size).astype(np.int32) for size in (9, 7, 11)]
    base = compute_logits(LLAMA, weights, texts)
    compare(runner.prefill(0, texts[0][:-1], 0), base[0][7])
    for number in (2, 1):
        runner.read_adapter(tmp_path / str(number - 1))(number)
    merged = [
        compute_logits(LLAMA, merge_adapter(LLAMA, weights, *pair), texts) for pair in zip(adapters, loras, strict=True)
    ]
    expected = [base[0], merged[0][1], merged[1][2]]
    assert np.abs(merged[0][1] - base[1]).max() > 0.1 < np.abs(merged[1][2] - base[2]).max()
    for slot, text in enumerate(texts):
        logits = runner.prefill(slot, text[:-1], 0, adapter=slot, all_positions=slot == 2)
        compare(logits, expected[slot][: len(text) - 1] if slot == 2 else expected[slot][len(text) - 2])
    last = np.array([text[-1] for text in texts], np.int32)
    positions = np.array([len(text) - 1 for text in texts], np.int32)
    for row, logits in enumerate(runner.decode(range(3), last, positions, (0, 1, 2))):
        compare(logits, expected[row][len(texts[row]) - 1])
    # A number's next adapter leaves nothing of the one before.
    runner.read_adapter(tmp_path / "1")(1)
    compare(runner.prefill(1, texts[1][:-1], 0, adapter=1), merged[1][1][len(texts[1]) - 2])
    found = runner.decode(range(3), last, positions, (0, 1, 2))
    compare(found[1], merged[1][1][len(texts[1]) - 1])
    with pytest.raises(UserError, match=r"adapter_config.json: r: must be at most 2 \(--max-lora-rank\), got 3"):
        CausalRunner(LLAMA, weights, slots=1, max_length=40, max_loras=1, max_lora_rank=2).read_adapter(tmp_path / "0")


def test_graph_reads_later_writes_to_shared_array() -> None:
    class Doubled(ms.nn.Cell):
        def construct(self, value: Any) -> Any:
            return value * 2

    array, cell = np.ones(4096, np.float32), Doubled()
    tensor = Tensor.from_numpy(array)
    assert cell.compile_and_run(tensor).asnumpy()[0] == 2
    array[:] = 5
    assert cell.compile_and_run(tensor).asnumpy()[0] == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 3}, "kv_heads: must divide 4 heads, got 3"),
        ({"width": 0}, "width: must be >= 1, got 0"),
        ({"head_size": 7}, "head_size: must be even with rotary positions, got 7"),
        ({"windowed": (1,)}, r"windowed: must be ascending layers below 1, got \[1\]"),
        ({"windowed": (0,)}, "window: must be >= 1 with windowed layers, got 0"),
        ({"norm": "batch"}, "norm: must be one of rms, layer, got 'batch'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DecoderConfig(**{**SIZES, **change})


@pytest.mark.parametrize(("slots", "length"), [(0, 10), (17, 10), (1, 0), (1, 41)])
def test_runner_refuses_sizes_beyond_limits(slots: int, length: int) -> None:
    with pytest.raises(UserError, match="must be from 1 to"):
        CausalRunner(LLAMA, {}, slots=slots, max_length=length)
