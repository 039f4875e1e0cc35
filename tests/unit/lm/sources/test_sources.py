"""Sources: names, layouts and refusals before weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.lm.network.decoder import compute_rotations, list_weights
from kfp_mindspore.lm.sources.gguf import read_gguf
from kfp_mindspore.lm.sources.huggingface import parse_config, read_huggingface

pytestmark = pytest.mark.mindspore

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "eos_token_id": 2,
}  # fmt: skip
LAYER = "model.layers.0"


def make_tensors() -> dict[str, np.ndarray]:
    shapes = {
        "model.embed_tokens.weight": (30, 16), "model.norm.weight": (16,), "lm_head.weight": (30, 16),
        f"{LAYER}.input_layernorm.weight": (16,), f"{LAYER}.post_attention_layernorm.weight": (16,),
        f"{LAYER}.self_attn.q_proj.weight": (16, 16), f"{LAYER}.self_attn.k_proj.weight": (8, 16),
        f"{LAYER}.self_attn.v_proj.weight": (8, 16), f"{LAYER}.self_attn.o_proj.weight": (16, 16),
        f"{LAYER}.mlp.gate_proj.weight": (24, 16), f"{LAYER}.mlp.up_proj.weight": (24, 16),
        f"{LAYER}.mlp.down_proj.weight": (16, 24),
    }  # fmt: skip
    random = np.random.default_rng(1)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write_directory(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    save_file(tensors, directory / "model.safetensors")
    return directory


def test_directory_gives_stacked_weights(tmp_path: Path) -> None:
    tensors = make_tensors()
    model = read_huggingface(write_directory(tmp_path, LLAMA, tensors))
    assert list(model.weights) == list(list_weights(model.config))
    parts = [tensors[f"{LAYER}.self_attn.{part}_proj.weight"] for part in "qkv"]
    np.testing.assert_array_equal(model.weights["layers.0.qkv.weight"], np.concatenate(parts))
    assert model.template == "{{ messages }}"
    assert model.generation == {"eos_token_id": 2}


@pytest.mark.parametrize("tied", [False, True])
def test_scalars_of_granite_are_folded(tmp_path: Path, tied: bool) -> None:
    tensors = make_tensors()
    if tied:
        del tensors["lm_head.weight"]
    scalars = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.25}
    config = {**LLAMA, "model_type": "granite", **scalars, "attention_multiplier": 0.5, "tie_word_embeddings": tied}
    model = read_huggingface(write_directory(tmp_path, config, tensors))
    assert (model.config.attention_scale, model.config.epsilon) == (0.5, 1e-5 / 0.25**2)
    hidden, norm = model.weights["embedding"], model.weights["norm.weight"]
    np.testing.assert_allclose(hidden, tensors["model.embed_tokens.weight"] * 12 / 0.25, rtol=1e-6)
    for name in ("layers.0.out.weight", "layers.0.down.weight"):
        part = "self_attn.o_proj" if "out" in name else "mlp.down_proj"
        np.testing.assert_array_equal(model.weights[name], tensors[f"{LAYER}.{part}.weight"])

    # The published order of operations, in float64: a layer's output times 0.25 beside 12 times the embedding.
    def normalise(values: Any, epsilon: float) -> Any:
        return values / np.sqrt((values.astype(np.float64) ** 2).mean(-1, keepdims=True) + epsilon)

    update = np.random.default_rng(5).normal(size=hidden.shape)
    head = tensors["model.embed_tokens.weight" if tied else "lm_head.weight"].astype(np.float64)
    published = normalise(tensors["model.embed_tokens.weight"] * 12 + update * 0.25, 1e-5)
    expected = published * tensors["model.norm.weight"] @ head.T / 8
    found = normalise(hidden + update, model.config.epsilon) * norm @ (hidden if tied else model.weights["head"]).T
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def test_part_of_phis_heads_rotates(tmp_path: Path) -> None:
    tensors = make_tensors()
    parts = [tensors.pop(f"{LAYER}.self_attn.{part}_proj.weight") for part in "qkv"]
    gated = [tensors.pop(f"{LAYER}.mlp.{part}_proj.weight") for part in ("gate", "up")]
    # Two heads of 8, of which 4 features rotate.
    tensors[f"{LAYER}.self_attn.qkv_proj.weight"] = np.concatenate(parts)
    tensors[f"{LAYER}.mlp.gate_up_proj.weight"] = np.concatenate(gated)
    short, length = [1.0, 1.5], 16
    config: dict[str, Any] = {
        **LLAMA, "model_type": "phi3", "num_attention_heads": 2, "num_key_value_heads": 1,
        "partial_rotary_factor": 0.5, "original_max_position_embeddings": length,
        "rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": [3.0, 4.0]},
    }  # fmt: skip
    model = read_huggingface(write_directory(tmp_path, config, tensors))
    assert model.config.max_length == length
    np.testing.assert_array_equal(model.weights["layers.0.up.weight"], np.concatenate(gated))
    inputs, positions = np.random.default_rng(3).normal(size=(2, 16)), (11, 4)
    # The published formulas for the first query head and the key head.
    magnitude = np.sqrt(1 + np.log(64 / length) / np.log(length))
    frequencies = 1 / (np.array(short) * 10000.0 ** (np.arange(2) * 2 / 4))
    published, found = [], []
    for matrix, rows, state, position in zip(parts[:2], (slice(8), slice(16, 24)), inputs, positions, strict=True):
        values = matrix[:8] @ state
        cosine, sine = np.cos(position * frequencies) * magnitude, np.sin(position * frequencies) * magnitude
        first, second = values[:2], values[2:4]
        turned = (first * cosine - second * sine, second * cosine + first * sine, values[4:])
        published.append(np.concatenate(turned))
        values = model.weights["layers.0.qkv.weight"][rows] @ state
        cosine, sine = (table[position] for table in compute_rotations(model.config))
        first, second = values[:4], values[4:]
        found.append(np.concatenate((first * cosine - second * sine, second * cosine + first * sine)))
    np.testing.assert_allclose(found[0] @ found[1], published[0] @ published[1], rtol=1e-5)
    np.testing.assert_array_equal(model.weights["layers.0.qkv.weight"][24:], parts[2])


def test_special_tokens_are_those_of_tokenizer_config(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, LLAMA, make_tensors())
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}, "bos_token": None}))
    model = read_huggingface(directory)
    assert model.generation == {"eos_token_id": 2, "special_tokens": {"eos_token": "<end>"}}


def test_shards_in_16_bits_are_widened(tmp_path: Path) -> None:
    tensors = make_tensors()
    write_directory(tmp_path, LLAMA, {})
    (tmp_path / "model.safetensors").unlink()
    names = list(tensors)
    save_file({name: tensors[name].astype(np.float16) for name in names[:5]}, tmp_path / "a.safetensors")
    bits = {name: (tensors[name].view(np.uint32) >> 16).astype(np.uint16) for name in names[5:]}
    save_file(bits, tmp_path / "b.safetensors")
    data = (tmp_path / "b.safetensors").read_bytes().replace(b'"U16"', b'"BF16"')
    header = int.from_bytes(data[:8], "little") + len(bits)
    (tmp_path / "b.safetensors").write_bytes(header.to_bytes(8, "little") + data[8:])
    files = {name: "a.safetensors" if name in names[:5] else "b.safetensors" for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    found = read_huggingface(tmp_path).weights["layers.0.down.weight"]
    np.testing.assert_allclose(found, tensors[f"{LAYER}.mlp.down_proj.weight"], rtol=2**-7)


def test_gpt2_matrices_are_transposed(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "vocab_size": 30, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
    config["activation_function"] = "gelu_new"
    random = np.random.default_rng(2)
    shapes = {"wte.weight": (30, 8), "wpe.weight": (16, 8)}
    for name, shape in {
        "attn.c_attn": (8, 24),
        "attn.c_proj": (8, 8),
        "mlp.c_fc": (8, 32),
        "mlp.c_proj": (32, 8),
    }.items():
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[1:]}
    for name in ("h.0.ln_1", "h.0.ln_2", "ln_f"):
        shapes |= {f"{name}.weight": (8,), f"{name}.bias": (8,)}
    tensors = {f"transformer.{name}": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    model = read_huggingface(write_directory(tmp_path, config, tensors))
    np.testing.assert_array_equal(model.weights["layers.0.qkv.weight"], tensors["transformer.h.0.attn.c_attn.weight"].T)
    np.testing.assert_array_equal(model.weights["layers.0.down.bias"], tensors["transformer.h.0.mlp.c_proj.bias"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "mamba"},
            r"architecture must be one of gemma3_text, gpt2, .* \(10 in all\), got 'mamba'",
        ),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map: the author's code is never run"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope_type: must be one of default, linear, llama3, yarn, got 'lo",
        ),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window: must be a whole number >= 1, got 0"),
        ({"num_local_experts": 8}, "num_local_experts: mixtures of experts are not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: not supported"),
        ({"hidden_act": "relu"}, "hidden_act: must be one of silu"),
        ({"hidden_size": "16"}, "hidden_size: must be a whole number >= 1, got '16'"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: must divide num_attention_heads 4, got 3"),
    ],
)
def test_unsupported_configurations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_config({**LLAMA, **change}, "config.json")


def test_rope_theta_is_read_from_both_places() -> None:
    assert parse_config({**LLAMA, "rope_theta": 5e5}, "").rope_theta == 5e5
    assert parse_config({**LLAMA, "rope_parameters": {"rope_theta": 1e6}}, "").rope_theta == 1e6


def drop(tensors: dict[str, np.ndarray]) -> None:
    del tensors[f"{LAYER}.mlp.up_proj.weight"]


def reshape(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{LAYER}.self_attn.k_proj.weight"] = np.zeros((4, 16), np.float32)


def add(tensors: dict[str, np.ndarray]) -> None:
    tensors[f"{LAYER}.self_attn.q_proj.bias"] = np.zeros(16, np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, "mlp.up_proj.weight: missing"),
        (reshape, r"k_proj.weight: shape must be \(8, 16\), got \(4, 16\)"),
        (add, "q_proj.bias: not a weight of this architecture"),
    ],
)
def test_tensors_that_do_not_fit_are_listed(
    tmp_path: Path, change: Callable[[dict[str, np.ndarray]], None], message: str
) -> None:
    tensors = make_tensors()
    change(tensors)
    with pytest.raises(UserError, match=message):
        read_huggingface(write_directory(tmp_path, LLAMA, tensors))


def test_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    directory = write_directory(tmp_path, {**LLAMA, "tie_word_embeddings": True}, make_tensors())
    with pytest.raises(UserError, match=r"lm_head\.weight: differs from the embedding"):
        read_huggingface(directory)


def test_pickle_files_are_not_opened(tmp_path: Path) -> None:
    write_directory(tmp_path, LLAMA, {})
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no \*.safetensors; pytorch_model.bin: pickle files are never opened"):
        read_huggingface(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_directory(tmp_path, LLAMA, {})
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(NotFoundError, match=r"b\.safetensors missing"):
        read_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-100], "the file has"),
        (lambda data: (1 << 40).to_bytes(8, "little") + data[8:], "header length: must be at most"),
        (lambda data: data[:8] + b"x" + data[9:], "header: no JSON"),
        (lambda data: data.replace(b"[30,16]", b"[31,16]", 1), "data_offsets must span 1984 bytes"),
        (lambda data: data.replace(b'"F32"', b'"I32"', 1), "dtype must be one of F32"),
    ],
)
def test_lying_safetensors_are_refused(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    file = write_directory(tmp_path, LLAMA, make_tensors()) / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(UserError, match=message):
        read_huggingface(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04", "is no GGUF file: it must begin with b'GGUF'"),
        (b"GGUF\x03\x00", "header: truncated at byte 6"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "version: must be 2 or 3, got 9"),
        (b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 8 + bytes(8), "tensor_count: .* do not fit"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + b"\xff" * 8, "metadata_kv_count: .* do not fit"),
        (b"GGUF" + (3).to_bytes(4, "little") + bytes(16), "general.architecture|architecture must be one of"),
    ],
)
def test_lying_gguf_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    with pytest.raises(UserError, match=message):
        read_gguf(file)
