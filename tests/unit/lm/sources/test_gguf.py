"""A GGUF written from a model equals it when it is read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers, processors

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.bundle.export_gguf import write_gguf
from kfp_mindspore.lm.network.decoder import DecoderConfig, compute_rotations, list_weights
from kfp_mindspore.lm.network.rope import RopeScaling
from kfp_mindspore.lm.sources.families import build_partial_rope
from kfp_mindspore.lm.sources.gguf import SPLITS, build_tokenizer, read_gguf
from kfp_mindspore.lm.sources.model import SourceModel
from tests.support.language import sentencepiece_metadata
from tests.support.language.numpy_decoder import write_tokenizer

pytestmark = pytest.mark.mindspore

TEXT = "The quick brown fox, 1234 jumps!\n\n  für 5 € 你好 <|im_start|>x<tool_call> I'll"
LLAMA3 = RopeScaling("llama3", 8.0, 8192)
YARN = RopeScaling("yarn", 4.0, 16, beta_fast=16.0, attention_factor=0.75)
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"out_bias": True, "qkv_bias": True, "mlp_bias": True},
    "mistral": {"tied": True},
    "qwen2": {"qkv_bias": True, "tied": True},
    "qwen3": {"qk_norm": True, "head_size": 6},
    "smollm3": {"layers": 5, "unrotated": (3,), "tied": True},
    # The residuals' scale is in epsilon.
    "granite": {"attention_scale": 0.25, "mlp_bias": True, "epsilon": 2e-4},
    "olmo2": {"joint_qk_norm": True, "norm_after": True},
    "phi3": {"tied": True},
    "gemma3_text": {
        "layers": 7, "activation": "gelu_tanh", "qk_norm": True, "attention_scale": 0.5, "norm_twice": True,
        "window": 8, "windowed": (0, 1, 2, 3, 4, 6), "window_theta": 10000.0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(file)
    return Tokenizer.from_file(str(file))


def make_model(tokenizer: Tokenizer, kind: str, pre: str = "gpt-2", **changes: Any) -> SourceModel:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    if expression := SPLITS[pre]:
        steps: list[Any] = [pre_tokenizers.Split(Regex(expression), "isolated")]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    elif pre in ("smollm", "refact"):
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre == "llama-bpe":
        name = "<|endoftext|>"
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, 0)])
    # More rows than tokens, as Qwen's embedding has.
    size = tokenizer.get_vocab_size() + 3
    layers = changes.pop("layers", 2)
    config = DecoderConfig(*(size, 16, layers, 4, 2), **{"head_size": 4, "hidden": 24, "max_length": 64, **changes})
    random = np.random.default_rng(3)
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in list_weights(config).items()}
    generation = {"eos_token_id": [2, 0], "bos_token_id": 0, "pad_token_id": 0}
    return SourceModel(config, weights, tokenizer.to_str(), "{{ messages[0].content }}", generation, kind)


@pytest.mark.parametrize(("kind", "pre"), zip(VARIANTS, [*SPLITS, "gpt-2", "smollm"], strict=True))
def test_model_is_equal_when_read_again(tokenizer: Tokenizer, tmp_path: Path, kind: str, pre: str) -> None:
    model = make_model(tokenizer, kind, pre, **VARIANTS[kind])
    write_gguf(model, tmp_path / "model.gguf", subject="model")
    found = read_gguf(tmp_path / "model.gguf")
    assert found.weights.keys() == model.weights.keys()
    for name, array in model.weights.items():
        # Gemma's embedding and last norm are divided by a number and multiplied again.
        np.testing.assert_allclose(found.weights[name], array, rtol=2e-7 if kind == "gemma3_text" else 0)
    assert dataclasses.replace(found.config, epsilon=model.config.epsilon) == model.config
    assert (found.template, found.generation) == (model.template, model.generation)
    texts = [Tokenizer.from_str(each.tokenizer) for each in (model, found)]
    first, second = (each.encode(TEXT).ids for each in texts)
    assert first == second
    assert texts[0].decode(first) == texts[1].decode(first)


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        ("llama", LLAMA3),
        ("mistral", RopeScaling("factors", factors=(1.0, 2.5))),
        ("qwen2", RopeScaling("linear", 2.0)),
        ("qwen3", YARN),
    ],
)
def test_scaled_positions_are_equal_when_read_again(
    tokenizer: Tokenizer, tmp_path: Path, kind: str, scaling: RopeScaling
) -> None:
    # Llama 3's parameters are found in the divisors when the longest wavelength is divided by the whole factor.
    size = {"head_size": 16} if scaling == LLAMA3 else {}
    model = make_model(tokenizer, kind, **VARIANTS[kind], **size, rope_theta=5e5, rope_scaling=scaling)
    write_gguf(model, tmp_path / "model.gguf", subject="model")
    found = read_gguf(tmp_path / "model.gguf").config
    for table, expected in zip(compute_rotations(found), compute_rotations(model.config), strict=True):
        np.testing.assert_allclose(table, expected, rtol=0, atol=1e-6)
    assert found.rope_scaling is not None
    assert dataclasses.replace(found.rope_scaling, attention_factor=scaling.attention_factor) == scaling


@pytest.mark.parametrize("scaling", [None, RopeScaling("factors", factors=(1.0, 2.0, 3.0), attention_factor=1.5)])
@pytest.mark.parametrize("part", [0.5, 1.0])
def test_heads_of_which_a_part_rotates_are_equal_when_read_again(
    tokenizer: Tokenizer, tmp_path: Path, scaling: RopeScaling | None, part: float
) -> None:
    short = scaling and scaling.factors if part == 1 else scaling and scaling.factors[:2]
    magnitude = scaling.attention_factor if scaling else 1.0
    size = 6 if part == 1 else 8
    built = build_partial_rope(1e4, size, int(size * part), short, magnitude)
    model = make_model(tokenizer, "phi3", head_size=size, rope_scaling=built)
    write_gguf(model, tmp_path / "model.gguf", subject="model")
    found = read_gguf(tmp_path / "model.gguf")
    for name, array in model.weights.items():
        np.testing.assert_array_equal(found.weights[name], array)
    for table, expected in zip(compute_rotations(found.config), compute_rotations(model.config), strict=True):
        np.testing.assert_allclose(table, expected, rtol=0, atol=1e-5)


def test_scales_in_metadata_are_in_the_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    import gguf

    model, values = make_model(tokenizer, "granite", attention_scale=0.25), {}
    values = {"embedding_scale": 12.0, "residual_scale": 0.5, "logit_scale": 8.0}
    write_gguf(model, tmp_path / "unscaled.gguf", subject="model")
    reader = gguf.GGUFReader(tmp_path / "unscaled.gguf", "r+")
    for name, value in values.items():
        field = reader.fields[f"granite.{name}"]
        field.parts[field.data[0]][0] = value
    reader.data.flush()
    found = read_gguf(tmp_path / "unscaled.gguf")
    np.testing.assert_array_equal(found.weights["embedding"], model.weights["embedding"] * 24)
    np.testing.assert_array_equal(found.weights["norm.weight"], model.weights["norm.weight"] / 8)
    assert found.config.epsilon == pytest.approx(model.config.epsilon * 4)


def write_metadata(file: Path, changes: dict[str, Any], frequencies: list[float] | None = None) -> None:
    """Write a configuration, its embedding and no other tensor."""
    import gguf

    changes = dict(changes)
    architecture = changes.pop("architecture", "llama")
    writer = gguf.GGUFWriter(file, architecture)
    values = {
        "context_length": 64, "embedding_length": 16, "block_count": 1, "feed_forward_length": 24,
        "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    add = {bool: writer.add_bool, int: writer.add_int32, float: writer.add_float32, str: writer.add_string}
    for name, value in {**values, **changes}.items():
        add[type(value)](f"{architecture}.{name}", value)
    writer.add_tensor("token_embd.weight", np.zeros((5, 16), np.float32))
    if frequencies:
        writer.add_tensor("rope_freqs.weight", np.array(frequencies, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("changes", "frequencies", "message"),
    [
        ({"rope.freq_base": 0.0}, None, "llama.rope.freq_base: must be a number > 0, got 0.0"),
        ({"block_count": 2.0}, None, "llama.block_count: must be a whole number from 1 to 4096, got 2.0"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, None, "layer_norm_rms_epsilon: must be a number > 0 and < 1"),
        ({"attention.head_count": "4"}, None, "llama.attention.head_count: must be a whole number >= 1, got '4'"),
        ({"attention.head_count": 3}, None, "llama.attention.key_length: must be even, got 5"),
        ({"attention.head_count_kv": 3}, None, "head_count_kv: must divide attention.head_count 4, got 3"),
        ({"attention.value_length": 8}, None, "llama.attention.value_length: must be 4, got 8"),
        ({"attention.causal": False}, None, "llama.attention.causal: must be True, got False"),
        ({"attention.scale": 0.5}, None, "llama.attention.scale: not known, got 0.5"),
        ({"logit_scale": 0.5}, None, "llama.logit_scale: not known, got 0.5"),
        ({"rope.dimension_count": 2}, None, "llama.rope.dimension_count: must be 4, got 2"),
        ({"rope.scaling.type": "longrope"}, None, "rope.scaling.type: must be one of none, linear, yarn, got 'longr"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.5}, None, "rope.scaling.factor: must be >= 1, got"),
        ({"rope.scaling.attn_factor": 2.0}, None, "attn_factor: must be 1 with type 'linear', got 2.0"),
        ({"rope.scaling.factor": 2.0}, [1.0, 8.0], "rope_freqs.weight: not supported with rope.scaling.type 'linear'"),
        ({}, [1.0], "rope_freqs.weight: must be 2 numbers >= 1"),
        ({}, [1.0, float("nan")], "rope_freqs.weight: must be 2 numbers >= 1"),
        ({"expert_count": 8}, None, "llama.expert_count: mixtures of experts are not supported"),
        (
            {"architecture": "phi3", "rope.dimension_count": 6},
            None,
            "phi3.rope.dimension_count: must be even and at mo",
        ),
        ({"architecture": "phi3", "rope.scaling.factor": 2.0}, None, "phi3.rope.scaling.factor: must be 1, got 2.0"),
        ({"architecture": "granite", "residual_scale": 1e-4}, None, "granite.residual_scale: must be > sqrt"),
        ({"architecture": "gemma3", "final_logit_softcapping": 30.0}, None, "final_logit_softcapping: not supported"),
        ({"attention.sliding_window": 8}, None, "attention.sliding_window: must be >= context_length 64, got 8"),
    ],
)
def test_unsupported_metadata_is_refused(
    tmp_path: Path, changes: dict[str, Any], frequencies: list[float] | None, message: str
) -> None:
    write_metadata(tmp_path / "model.gguf", changes, frequencies)
    with pytest.raises(UserError, match=message):
        read_gguf(tmp_path / "model.gguf")


SENTENCES = ("the quick brown fox jumps over the lazy dog", "the other fox is over there", "a dog jumps")


def test_sentencepiece_tokenizer_follows_scores() -> None:
    metadata = sentencepiece_metadata.build_metadata(SENTENCES)
    built = Tokenizer.from_str(build_tokenizer(metadata, len(metadata["tokenizer.ggml.tokens"]), "model.gguf"))
    for text in (*SENTENCES, "there jumps thethe", "  two  blanks ", "Zürich 🙂\n", "x"):
        found = built.encode(text).ids
        assert found == [1, *sentencepiece_metadata.encode(text, metadata)], text
        assert built.decode(found) == text
    mark = metadata["tokenizer.ggml.tokens"].index("<mark>")
    assert mark in built.encode("the <mark> fox").ids
    unmarked = {**metadata, "tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    plain = Tokenizer.from_str(build_tokenizer(unmarked, len(metadata["tokenizer.ggml.tokens"]), "model.gguf"))
    assert "".join(plain.encode("fox").tokens) == "fox"
    assert plain.decode(plain.encode("the fox").ids) == "the fox"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "t5"}, r"tokenizer.ggml.model: must be 'gpt2' \(byte-level BPE\) or 'llama'"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores: must have .* entries, got 1"),
        ({"unknown_token_id": 9999}, "tokenizer.ggml.unknown_token_id: must be from 0 to"),
    ],
)
def test_damaged_sentencepiece_tokenizer_is_refused(change: dict[str, Any], message: str) -> None:
    metadata = sentencepiece_metadata.build_metadata(SENTENCES)
    changed = {**metadata, **{f"tokenizer.ggml.{name}": value for name, value in change.items()}}
    with pytest.raises(UserError, match=message):
        build_tokenizer(changed, len(metadata["tokenizer.ggml.tokens"]), "model.gguf")


def test_end_is_the_tokenizers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = make_model(tokenizer, "llama")
    generation = {**model.generation, "eos_token_id": [0, 2], "special_tokens": {"eos_token": "<|im_end|>"}}
    write_gguf(dataclasses.replace(model, generation=generation), tmp_path / "model.gguf", subject="model")
    assert read_gguf(tmp_path / "model.gguf").generation["eos_token_id"] == [2, 0]


def test_models_without_a_form_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = make_model(tokenizer, "llama")
    value = json.loads(model.tokenizer)
    cases = {
        "architecture: must be one of llama": dataclasses.replace(model, architecture="gpt2"),
        "activation: must be 'silu'": make_model(tokenizer, "llama", activation="gelu"),
        "rope_scaling: must be linear or yarn for a GGUF of qwen2": make_model(
            tokenizer, "qwen2", qkv_bias=True, rope_scaling=LLAMA3
        ),
        r"unrotated: must be \(3,\) for a GGUF of smollm3, got \(1,\)": make_model(
            tokenizer, "smollm3", layers=4, unrotated=(1,)
        ),
        r"windowed: must be \(\) for a GGUF of llama, got \(0,\)": make_model(
            tokenizer, "mistral", layers=1, window=8, windowed=(0,)
        ),
        "qkv_bias: must be False for a GGUF of olmo2": make_model(
            tokenizer, "olmo2", **VARIANTS["olmo2"], qkv_bias=True, out_bias=True
        ),
        "attention_scale: must be 0.5 for a GGUF of gemma3, got 0.25": make_model(
            tokenizer, "gemma3_text", **{**VARIANTS["gemma3_text"], "attention_scale": 0.25}
        ),
        "head_size: must be 4 for a GGUF of qwen2, got 6": make_model(tokenizer, "qwen2", qkv_bias=True, head_size=6),
        "rope_scaling: truncate: must be true": make_model(
            tokenizer, "llama", rope_scaling=dataclasses.replace(YARN, truncate=False)
        ),
        "pre_tokenizer: must be the one of gpt-2": {"pre_tokenizer": {"type": "Whitespace"}},
        "normalizer.type: not supported": {"normalizer": {"type": "Lowercase"}},
        "model.type: must be 'BPE'": {"model": {**value["model"], "type": "WordPiece"}},
    }
    for message, case in cases.items():
        if isinstance(case, dict):
            case = dataclasses.replace(model, tokenizer=json.dumps({**value, **case}))
        with pytest.raises(UserError, match=message):
            write_gguf(case, tmp_path / "model.gguf", subject="model")
    assert not list(tmp_path.iterdir())
