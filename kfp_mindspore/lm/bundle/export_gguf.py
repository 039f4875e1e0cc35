"""Models written as GGUF files, which llama.cpp loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore import files
from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
from kfp_mindspore.lm.network.rope import RopeScaling, get_yarn_magnitude
from kfp_mindspore.lm.sources.families import GEMMA, list_exponents, unscale_gemma
from kfp_mindspore.lm.sources.gguf import (
    CONTROL,
    FREQUENCIES,
    GEMMA3,
    GRANITE,
    INTERLEAVED,
    LONG,
    OLMO2,
    PHI3,
    SHORT,
    SPLITS,
    USER_DEFINED,
    WINDOW_THETA,
    compute_query_scale,
    list_divisors,
    list_parts,
    list_unrotated,
    list_windowed,
)
from kfp_mindspore.lm.sources.huggingface import pair_rotated
from kfp_mindspore.lm.sources.model import SourceModel, refuse_fields, split_rows
from kfp_mindspore.lm.text.template import get_special_tokens
from kfp_mindspore.outputs import check_output_file, has_mark

# llama.cpp's architecture by model_type.
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3"}
_ARCHITECTURES |= {GEMMA: GEMMA3, "granite": GRANITE, "olmo2": OLMO2, "phi3": PHI3}
_TYPES = {"float32": np.float32, "float16": np.float16}
_FILE_TYPES = {"float32": 0, "float16": 1}
_NORMAL, _UNUSED = 1, 5
# In the header, by which an earlier export is recognised.
_DESCRIPTION = "Exported by kfp-mindspore"
# Scalings that are written as a tensor, which llama.cpp reads for Llama only.
_DIVIDED = ("llama3", "factors")


def write_gguf(model: SourceModel, file: Path, *, dtype: str = "float32", subject: str) -> None:
    """Write a model with its tokenizer and chat template.

    Args:
        model: The model.
        file: The output; an earlier export is replaced.
        dtype: Matrices' type, float32 or float16; vectors are always float32, as llama.cpp requires.
        subject: The model's origin, for messages.

    Raises:
        UserError: The format has no place for the architecture or the tokenizer; the message names the field.
        MissingExtraError: The library gguf is not installed.
    """
    try:
        import gguf
    except ModuleNotFoundError:
        raise MissingExtraError("gguf", "lm") from None
    config = model.config
    if model.architecture not in _ARCHITECTURES:
        raise UserError(
            f"{subject}: architecture: must be one of {', '.join(_ARCHITECTURES)} for a GGUF, "
            f"got {model.architecture!r}",
            hint="Export a Hugging Face directory.",
        )
    if dtype not in _TYPES:
        raise UserError(f"dtype: must be one of {', '.join(_TYPES)}, got {dtype!r}")
    architecture = _ARCHITECTURES[model.architecture]
    expected = _list_fixed(config, architecture)
    wrong = {name: found for name in expected if (found := getattr(config, name)) != expected[name]}
    reasons = {
        name: f"must be {expected[name]!r} for a GGUF of {architecture}, got {found!r}" for name, found in wrong.items()
    }
    refuse_fields(subject, {**reasons, "rope_scaling": _check_scaling(config.rope_scaling, architecture)})
    tokenizer = build_metadata(model, subject)
    check_output_file(file, "an earlier export", lambda found: has_mark(found, _DESCRIPTION))
    with files.replace_path(file) as temporary:
        writer = gguf.GGUFWriter(temporary, architecture)
        writer.add_description(_DESCRIPTION)
        writer.add_name(file.stem)
        writer.add_file_type(_FILE_TYPES[dtype])
        _add_config(writer, config)
        if architecture == GRANITE:
            # Its other scales are in the weights.
            writer.add_attention_scale(config.attention_scale)
            for add in (writer.add_embedding_scale, writer.add_residual_scale, writer.add_logit_scale):
                add(1.0)
        if config.windowed:
            writer.add_sliding_window(config.window)
        for key, value in tokenizer.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif value:
                writer.add_array(key, value)
        for name, array in split_weights(model, architecture).items():
            writer.add_tensor(name, array.astype(_TYPES[dtype] if array.ndim > 1 else np.float32))
        if config.rope_scaling and architecture == PHI3:
            factors = np.array(_list_short(config, config.rope_scaling), np.float32)
            # The long ones are for texts that the model is not imported for.
            writer.add_tensor(SHORT, factors)
            writer.add_tensor(LONG, factors)
        elif config.rope_scaling and config.rope_scaling.kind in _DIVIDED:
            divisors = list_divisors(config.rope_scaling, config.head_size, config.rope_theta)
            writer.add_tensor(FREQUENCIES, np.array(divisors, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def build_metadata(model: SourceModel, subject: str) -> dict[str, Any]:
    """Return tokenizer and chat template as metadata by key.

    Args:
        model: The model.
        subject: The model's origin, for messages.

    Raises:
        UserError: The tokenizer is no byte-level BPE that llama.cpp splits equally; the message names the field.
    """
    from tokenizers import Tokenizer

    value, size = json.loads(model.tokenizer), model.config.vocabulary_size
    kind, normalizer = value["model"].get("type"), (value.get("normalizer") or {}).get("type")
    refuse_fields(
        f"{subject}: tokenizer.json",
        {
            "model.type": kind != "BPE" and f"must be 'BPE' for a GGUF, got {kind!r}",
            # llama.cpp has no normal form: texts in NFC, which nearly all are, get equal tokens.
            "normalizer.type": normalizer not in (None, "NFC") and f"not supported in a GGUF, got {normalizer!r}",
        },
    )
    added = {token["id"]: token for token in value["added_tokens"]}
    tokens = {number: token for token, number in value["model"]["vocab"].items()}
    tokens |= {number: token["content"] for number, token in added.items()}
    if (largest := max(tokens)) >= size:
        raise UserError(f"{subject}: tokenizer.json: IDs must be less than {size}, the embedding's rows, got {largest}")
    # The embedding may have more rows than the tokenizer has tokens.
    names = [tokens.get(number, f"[PAD{number}]") for number in range(size)]
    kinds = [_NORMAL if number in tokens else _UNUSED for number in range(size)]
    for number, token in added.items():
        kinds[number] = CONTROL if token["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in value["model"]["merges"]]
    generation = model.generation
    ends = generation.get("eos_token_id")
    ends = [ends] if isinstance(ends, int) else list(ends or ())
    tokenizer = Tokenizer.from_str(model.tokenizer)
    # The end of a text is the tokenizer's; an assistant's message may end with another token.
    named = tokenizer.token_to_id(get_special_tokens(tokenizer, generation).get("eos_token", ""))
    ends = list(dict.fromkeys([*([] if named is None else [named]), *ends]))
    found = {"bos": generation.get("bos_token_id"), "padding": generation.get("pad_token_id")}
    found |= dict(zip(("eos", "eot"), ends, strict=False))
    ids = {f"tokenizer.ggml.{name}_token_id": number for name, number in found.items() if number is not None}
    first = tokenizer.encode("").ids[:1]
    if first and first != [found["bos"]]:
        raise UserError(
            f"{subject}: tokenizer.json: post_processor: must begin with bos_token_id {found['bos']}, got {first[0]}"
        )
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": find_split(value.get("pre_tokenizer"), subject),
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        **ids,
        "tokenizer.ggml.add_bos_token": bool(first),
        "tokenizer.ggml.add_space_prefix": False,
    }
    return {**metadata, "tokenizer.chat_template": model.template} if model.template else metadata


def find_split(value: dict[str, Any] | None, subject: str) -> str:
    """Return `tokenizer.ggml.pre`, llama.cpp's name for a split into words.

    Args:
        value: tokenizer.json's pre_tokenizer.
        subject: The model's origin, for messages.

    Raises:
        UserError: There is no name for it.
    """
    steps = (value or {}).get("pretokenizers", [value] if value else [])
    kinds = [step["type"] for step in steps]
    if kinds in (["ByteLevel"], ["Digits", "ByteLevel"]) and steps[-1].get("use_regex", True):
        individual = len(kinds) == 1 or steps[0]["individual_digits"]
        if individual and not steps[-1].get("add_prefix_space"):
            return "smollm" if len(kinds) == 2 else "gpt-2"
    if kinds == ["Split", "ByteLevel"] and not steps[-1].get("use_regex", True):
        for name, expression in SPLITS.items():
            if expression is not None and steps[0]["pattern"].get("Regex") == expression:
                return name
    raise UserError(
        f"{subject}: tokenizer.json: pre_tokenizer: must be the one of {', '.join(SPLITS)} for a GGUF, "
        f"got {' + '.join(kinds) or 'none'}",
        hint="Export a Hugging Face directory.",
    )


def split_weights(model: SourceModel, architecture: str) -> dict[str, NDArray[np.float32]]:
    """Return the weights under llama.cpp's names and in its layout.

    Args:
        model: The model.
        architecture: llama.cpp's.
    """
    config, tensors = model.config, {}
    parts = list_parts(config, architecture)
    weights: dict[str, Any] = {**model.weights, **pair_rotated(config, model.weights, inverse=True)}
    if architecture == GEMMA3:
        weights = unscale_gemma(config, weights)
    for name, shape in list_weights(config).items():
        stops: Any = np.cumsum(split_rows(config, name, shape[0]))[:-1] if len(parts[name]) > 1 else []
        for part, piece in zip(parts[name], np.split(weights[name], stops), strict=True):
            array = piece
            # Neighbouring rows are a rotary pair.
            if architecture in INTERLEAVED and part.split(".")[-2] in ("attn_q", "attn_k"):
                pairs = piece.reshape(-1, 2, config.head_size // 2, *piece.shape[1:])
                array = pairs.swapaxes(1, 2).reshape(piece.shape)
            tensors[part] = np.ascontiguousarray(array)
    return tensors


def _add_config(writer: Any, config: DecoderConfig) -> None:
    writer.add_vocab_size(config.vocabulary_size)
    writer.add_context_length(config.max_length)
    writer.add_embedding_length(config.width)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.hidden)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    scaling = config.rope_scaling
    writer.add_rope_dimension_count(2 * scaling.rotated if scaling and scaling.rotated else config.head_size)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.epsilon)
    prefix = f"{writer.arch}.rope.scaling"
    if scaling is not None and writer.arch == PHI3:
        writer.add_float32(f"{prefix}.attn_factor", scaling.attention_factor)
        writer.add_uint32(f"{prefix}.original_context_length", config.max_length)
    if scaling is None or scaling.kind in _DIVIDED:
        return
    writer.add_string(f"{prefix}.type", scaling.kind)
    writer.add_float32(f"{prefix}.factor", scaling.factor)
    if scaling.kind == "yarn":
        writer.add_uint32(f"{prefix}.original_context_length", scaling.original_length)
        # llama.cpp multiplies by the published factor itself.
        writer.add_float32(f"{prefix}.attn_factor", scaling.attention_factor / get_yarn_magnitude(scaling.factor))
        writer.add_float32(f"{prefix}.yarn_beta_fast", scaling.beta_fast)
        writer.add_float32(f"{prefix}.yarn_beta_slow", scaling.beta_slow)


def _list_fixed(config: DecoderConfig, architecture: str) -> dict[str, Any]:
    """Return the fields that llama.cpp has in its code, or that its files have no place for."""
    fixed: dict[str, Any] = {"activation": "silu", "unrotated": list_unrotated(architecture, config.layers)}
    fixed |= {"windowed": ()}
    if architecture == "qwen2":
        # llama.cpp reads no size of its own for it.
        fixed["head_size"] = config.width // config.heads
    if architecture in (GEMMA3, OLMO2, PHI3):
        fixed["qkv_bias"] = False
    if architecture == GEMMA3:
        fixed |= {"activation": "gelu_tanh", "windowed": list_windowed(config.layers), "window_theta": WINDOW_THETA}
        sizes = (config.width, config.heads, config.head_size, config.layers)
        fixed["attention_scale"] = compute_query_scale(*sizes)
    return fixed


def _list_short(config: DecoderConfig, scaling: RopeScaling) -> list[float]:
    """Return longrope's factors of a scaling that the import built."""
    rotated = 2 * scaling.rotated or config.head_size
    powers = list_exponents(config.head_size, rotated)
    return [scaling.factors[index] / config.rope_theta**power for index, power in enumerate(powers)]


def _check_scaling(scaling: RopeScaling | None, architecture: str) -> str | None:
    """Return why a GGUF cannot have a scaling."""
    if scaling is None:
        return None
    if scaling.kind in _DIVIDED and architecture not in ("llama", PHI3):
        return f"must be linear or yarn for a GGUF of {architecture}, got {scaling.kind}"
    return "truncate: must be true for a GGUF, got false" if not scaling.truncate else None
