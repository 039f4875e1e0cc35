"""`causal-lm` bundles written as Hugging Face directories."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore import files
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
from kfp_mindspore.lm.serving.runner import read_network
from kfp_mindspore.lm.sources.families import CLASSES, GEMMA, describe_rope, unscale_gemma
from kfp_mindspore.lm.sources.fields import refuse
from kfp_mindspore.lm.sources.huggingface import list_parts, parse_config
from kfp_mindspore.lm.sources.model import split_rows
from kfp_mindspore.lm.text.template import SPECIAL_TOKENS, get_special_tokens
from kfp_mindspore.outputs import check_replaceable

_TYPES = {"float32": np.float32, "float16": np.float16}


def export_huggingface(bundle: Path, directory: Path, *, dtype: str = "float32") -> None:
    """Write a bundle's model as a directory that transformers loads.

    Args:
        bundle: The bundle.
        directory: The output, new or empty.
        dtype: float32 or float16.

    Raises:
        UserError: The bundle is no language model, the dtype is another one, the directory has content, or transformers
            has no form for a network field; the message names it.
        CorruptBundleError: A file has another digest than signed.
    """
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer

    check_replaceable(directory, None, [bundle])
    opened = ModelBundle.open(bundle)
    kind = opened.signature.metadata.get("architecture", "")
    if kind not in CLASSES:
        raise UserError(f"{bundle}: architecture must be one of {', '.join(CLASSES)}, got {kind!r}")
    if dtype not in _TYPES:
        raise UserError(f"dtype: must be one of {', '.join(_TYPES)}, got {dtype!r}")
    config, weights = read_network(bundle)
    check_form(config, kind, str(bundle))
    generation = json.loads((bundle / "generation.json").read_text())
    ids = {name: generation[name] for name in generation if name.endswith("_token_id")}
    tensors = {name: array.astype(_TYPES[dtype]) for name, array in split_weights(config, weights, kind).items()}
    template = bundle / "chat_template.jinja"
    with files.replace_directory(directory, None) as output:
        files.write_json(output / "config.json", {**build_config(config, kind), **ids, "torch_dtype": dtype})
        save_file(tensors, output / "model.safetensors", {"format": "pt"})
        tokenizer = (bundle / "tokenizer.json").read_text()
        (output / "tokenizer.json").write_text(tokenizer)
        tokens = get_special_tokens(Tokenizer.from_str(tokenizer), generation)
        described = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
        files.write_json(output / "tokenizer_config.json", described)
        generation.pop(SPECIAL_TOKENS, None)
        files.write_json(output / "generation_config.json", generation)
        if template.is_file():
            (output / template.name).write_text(template.read_text())


def split_weights(
    config: DecoderConfig, weights: dict[str, NDArray[np.float32]], kind: str
) -> dict[str, NDArray[np.float32]]:
    """Return the weights under transformers' names and in its layout.

    Args:
        config: The decoder's.
        weights: By the network's names.
        kind: `model_type`.
    """
    parts, tensors = list_parts(config, kind), {}
    if kind == GEMMA:
        unscaled = unscale_gemma(config, weights).items()
        weights = {name: array - 1 if "norm" in name else array for name, array in unscaled}
    for name, shape in list_weights(config).items():
        if kind == "gpt2":
            part = parts[name][0].replace(".c_attn.q.", ".c_attn.")
            is_transposed = ".c_" in part and part.endswith(".weight")
            array = weights[name].T if is_transposed else weights[name]
            tensors["lm_head.weight" if name == "head" else f"transformer.{part}"] = np.ascontiguousarray(array)
            continue
        sizes = split_rows(config, name, shape[0]) if len(parts[name]) > 1 else shape[:1]
        pieces = np.split(weights[name], np.cumsum(sizes)[:-1])
        tensors |= {part: np.ascontiguousarray(piece) for part, piece in zip(parts[name], pieces, strict=True)}
    return tensors


def check_form(config: DecoderConfig, kind: str, subject: str) -> None:
    """Raise unless config.json describes the network: transformers would compute other numbers without a word.

    Args:
        config: The decoder's.
        kind: `model_type`.
        subject: The bundle, for messages.

    Raises:
        UserError: A field differs in the configuration that config.json is read as; the message names it.
    """
    written = parse_config(build_config(config, kind), subject)
    refuse(
        [
            f"{field.name}: {kind} of transformers has no form for {found!r}, only for {getattr(written, field.name)!r}"
            for field in dataclasses.fields(config)
            if (found := getattr(config, field.name)) != getattr(written, field.name)
        ],
        subject,
        "" if kind == "phi3" else "Export a GGUF.",
    )


def build_config(config: DecoderConfig, kind: str) -> dict[str, Any]:
    """Return config.json.

    Args:
        config: The decoder's.
        kind: `model_type`.
    """
    value: dict[str, Any] = {
        "model_type": kind,
        "architectures": [CLASSES[kind]],
        "vocab_size": config.vocabulary_size,
    }
    value["tie_word_embeddings"] = config.tied
    if kind == "gpt2":
        names = {"gelu_tanh": "gelu_new"}
        value |= {"n_embd": config.width, "n_layer": config.layers, "n_head": config.heads, "n_inner": config.hidden}
        value |= {"n_positions": config.max_length, "layer_norm_epsilon": config.epsilon}
        return {**value, "activation_function": names.get(config.activation, config.activation)}
    value |= {"hidden_size": config.width, "num_hidden_layers": config.layers, "num_attention_heads": config.heads}
    value |= {"num_key_value_heads": config.kv_heads, "intermediate_size": config.hidden}
    if kind != "phi3":
        value["head_dim"] = config.head_size
    value |= {"max_position_embeddings": config.max_length, "rms_norm_eps": config.epsilon}
    value |= {"rope_theta": config.rope_theta, "rope_scaling": describe_rope(config.rope_scaling)}
    if kind == "smollm3":
        value["no_rope_layers"] = [int(number not in config.unrotated) for number in range(config.layers)]
    if kind == "granite":
        value["attention_multiplier"] = config.attention_scale
    if kind in ("llama", "granite", "smollm3"):
        value["mlp_bias"] = config.mlp_bias
    if kind in ("llama", "granite", "olmo2", "qwen3", "smollm3", GEMMA):
        value["attention_bias"] = config.out_bias
    names = {"gelu_tanh": "gelu_pytorch_tanh"}
    value["hidden_activation" if kind == GEMMA else "hidden_act"] = names.get(config.activation, config.activation)
    return value | _describe_windows(config, kind)


def _describe_windows(config: DecoderConfig, kind: str) -> dict[str, Any]:
    """Return config.json's keys for windowed layers."""
    types = ["sliding_attention" if layer in config.windowed else "full_attention" for layer in range(config.layers)]
    if kind == GEMMA:
        # The scale's square root is not always exact.
        scalar = round(config.attention_scale**-2, 6) if config.attention_scale else config.head_size
        own = {"query_pre_attn_scalar": scalar, "rope_local_base_freq": config.window_theta or 10000.0}
        return {**own, "sliding_window": config.window or 4096, "layer_types": types}
    if kind in ("mistral", "phi3"):
        return {"sliding_window": config.window or None}
    if config.windowed and kind in ("qwen2", "qwen3", "smollm3"):
        return {"use_sliding_window": True, "sliding_window": config.window, "layer_types": types}
    return {}
