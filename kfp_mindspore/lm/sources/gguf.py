"""GGUF files: metadata, dequantized tensors, tokenizer and chat template."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.network.rope import RopeScaling, compute_frequencies, get_yarn_magnitude
from kfp_mindspore.lm.sources.families import GEMMA, build_partial_rope, list_scales
from kfp_mindspore.lm.sources.fields import (
    IGNORED,
    MOST_LAYERS,
    MOST_POSITIONS,
    REQUIRED,
    Key,
    choice,
    number,
    off,
    only,
    optional,
    read_keys,
    refuse,
    size,
)
from kfp_mindspore.lm.sources.huggingface import pair_rotated
from kfp_mindspore.lm.sources.model import SourceModel, read_weights, refuse_architecture
from kfp_mindspore.lm.sources.sentencepiece import build_sentencepiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ARCHITECTURES = ("gemma3", "granite", "llama", "olmo2", "phi3", "qwen2", "qwen3", "smollm3")
# Their rotary pairs are neighbouring rows.
INTERLEAVED = ("granite", "llama", "smollm3")
# Every sixth of Gemma's layers has no window, the last of 62 layers scales its queries by another size: llama.cpp has
# both in its code, as the windowed layers' rotary base.
_PATTERN, _LARGEST, WINDOW_THETA = 6, 62, 10000.0
GEMMA3, GRANITE, OLMO2, PHI3 = "gemma3", "granite", "olmo2", "phi3"
# transformers' names of architectures, where they differ.
FAMILIES = {GEMMA3: GEMMA}
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# None splits by the byte level's own expression. Of two equal ones the first is written.
SPLITS = {"gpt-2": None, "smollm": None, "llama-bpe": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")}
SPLITS |= {"smaug-bpe": _LLAMA3, "dbrx": _LLAMA3, "refact": None}
# These split digits before.
_DIGITS = ("smollm", "refact")
CONTROL, USER_DEFINED = 3, 4
FREQUENCIES = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
# llama.cpp's keys, behind the architecture's name, with its defaults.
KEYS: Mapping[str, Key] = {
    "vocab_size": IGNORED,
    "tensor_data_layout": IGNORED,
    "context_length": size(REQUIRED, most=MOST_POSITIONS),
    "embedding_length": size(REQUIRED),
    "block_count": size(REQUIRED, most=MOST_LAYERS),
    "feed_forward_length": size(REQUIRED),
    "attention.head_count": size(REQUIRED),
    "attention.head_count_kv": optional(size(None)),
    "attention.key_length": optional(size(None)),
    "attention.value_length": optional(size(None)),
    "attention.layer_norm_rms_epsilon": number(REQUIRED, below=1),
    "attention.sliding_window": optional(size(None, least=0)),
    "attention.causal": only(True),
    "rope.dimension_count": optional(size(None)),
    "rope.freq_base": number(10000.0),
    # A file without a type has a factor of 1, or the one of its linear scaling.
    "rope.scaling.type": choice("linear", ("none", "linear", "yarn")),
    "rope.scaling.factor": number(1.0, least=0),
    "rope.scale_linear": number(1.0, least=0),
    "rope.scaling.original_context_length": size(None, least=0, most=MOST_POSITIONS),
    "rope.scaling.attn_factor": number(1.0),
    "rope.scaling.yarn_beta_fast": number(32.0),
    "rope.scaling.yarn_beta_slow": number(1.0),
    "rope.scaling.yarn_ext_factor": only(1.0, -1.0),
    "rope.scaling.yarn_attn_factor": only(1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": off(),
    "rope.scaling.finetuned": IGNORED,
    "expert_count": off("mixtures of experts are not supported"),
    "expert_used_count": off("mixtures of experts are not supported"),
}
_OWN_KEYS: Mapping[str, Mapping[str, Key]] = {
    GEMMA3: {
        "rope.freq_base_swa": number(WINDOW_THETA),
        "attention.sliding_window_pattern": size(_PATTERN),
        "final_logit_softcapping": off(),
        "attn_logit_softcapping": off(),
    },
    GRANITE: {
        **dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"), number(1.0)),
        "attention.scale": number(0.0, least=0),
    },
    PHI3: {"rope.scaling.type": choice("none", ("none", "longrope"))},
}
# Least bytes per entry: metadata, tensors.
_LEAST_ENTRY, _LEAST_TENSOR = 13, 24


def read_gguf(file: Path) -> SourceModel:
    """Read a GGUF file; quantized tensors become float32.

    Args:
        file: The file.

    Raises:
        UserError: The architecture, tokenizer or a variant is not supported, or the file is damaged; the message names
            the field.
        MissingExtraError: The library gguf is not installed.
    """
    _check_header(file)
    try:
        import gguf
    except ModuleNotFoundError:
        raise MissingExtraError("gguf", "lm") from None
    try:
        reader = gguf.GGUFReader(file)
        values = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OverflowError, TypeError) as error:
        raise UserError(f"{file}: metadata and tensor entries: truncated or damaged: {error}") from None
    arrays = {tensor.name: tensor for tensor in reader.tensors}
    config, kind = _parse_config(values, arrays, str(file)), str(values["general.architecture"])
    tokenizer = build_tokenizer(values, config.vocabulary_size, str(file))
    tensors = _GgufReader(arrays, config, interleaved=kind in INTERLEAVED)
    ignored = (SHORT, LONG) if kind == PHI3 else (FREQUENCIES,)
    weights = read_weights(config, tensors, list_parts(config, kind), subject=str(file), ignored=ignored)
    weights |= pair_rotated(config, weights)
    scales = list_scales(_get_multipliers(values, kind), config)
    weights |= {name: weights[name] * np.float32(scale) for name, scale in scales.items()}
    ids = {name: values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "bos", "padding")}
    generation = {f"{name.replace('padding', 'pad')}_token_id": number for name, number in ids.items()}
    if (turn := values.get("tokenizer.ggml.eot_token_id")) not in (None, ids["eos"]) and ids["eos"] is not None:
        generation["eos_token_id"] = [ids["eos"], turn]
    return SourceModel(
        config,
        weights,
        tokenizer,
        str(values.get("tokenizer.chat_template", "")),
        {name: number for name, number in generation.items() if number is not None},
        FAMILIES.get(kind, kind),
    )


def _get_multipliers(values: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """Return what a file says about its weights' scales, by config.json's names."""
    names = {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier"}
    names["logit_scale"] = "logits_scaling"
    found = {names[name]: values.get(f"{architecture}.{name}", 1.0) for name in names}
    return {"model_type": FAMILIES.get(architecture, architecture), **found}


def build_tokenizer(values: Mapping[str, Any], size: int, subject: str) -> str:
    """Return tokenizer.json from the metadata.

    Args:
        values: The metadata by key.
        size: The embedding's rows.
        subject: The file, for messages.

    Raises:
        UserError: The tokenizer's kind is not supported, or its tables do not fit; the message names the key.
    """
    from tokenizers import AddedToken, processors

    model, pre = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre", "gpt-2")
    if model not in ("gpt2", "llama"):
        kinds = "'gpt2' (byte-level BPE) or 'llama' (SentencePiece)"
        raise UserError(f"{subject}: tokenizer.ggml.model: must be {kinds}, got {model!r}")
    if model == "gpt2" and pre not in SPLITS:
        raise UserError(f"{subject}: tokenizer.ggml.pre: must be one of {', '.join(SPLITS)}, got {pre!r}")
    tokens, merges = values.get("tokenizer.ggml.tokens", []), values.get("tokenizer.ggml.merges", [])
    kinds = values.get("tokenizer.ggml.token_type", [1] * len(tokens))
    scores = values.get("tokenizer.ggml.scores", []) if model == "llama" else [0.0] * size
    for name, count in (("tokens", len(tokens)), ("token_type", len(kinds)), ("scores", len(scores))):
        if count != size:
            raise UserError(f"{subject}: tokenizer.ggml.{name}: must have {size} entries, got {count}")
    table = {token: index for index, token in enumerate(tokens)}
    if model == "llama":
        unknown = values.get("tokenizer.ggml.unknown_token_id", 0)
        if not 0 <= unknown < size:
            raise UserError(f"{subject}: tokenizer.ggml.unknown_token_id: must be from 0 to {size - 1}, got {unknown}")
        adds_blank = bool(values.get("tokenizer.ggml.add_space_prefix", True))
        tokenizer = build_sentencepiece(table, scores, kinds, tokens[unknown], adds_blank=adds_blank)
    else:
        tokenizer = _build_byte_level(table, merges, pre, subject)
    for wanted, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [token for token, kind in zip(tokens, kinds, strict=True) if kind == wanted]
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    # llama.cpp's default for SentencePiece is true.
    if values.get("tokenizer.ggml.add_bos_token", model == "llama"):
        number = int(values["tokenizer.ggml.bos_token_id"])
        bos = tokens[number]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, number)]
        )
    return str(tokenizer.to_str())


def _build_byte_level(table: Mapping[str, int], merges: Sequence[str], pre: str, subject: str) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pairs: list[tuple[str, str]] = []
    for merge in merges:
        first, _, second = merge.partition(" ")
        if first not in table or second not in table or first + second not in table:
            raise UserError(f"{subject}: tokenizer.ggml.merges: {merge!r} does not fit the tokens")
        pairs.append((first, second))
    tokenizer = Tokenizer(models.BPE(dict(table), pairs))
    split = SPLITS[pre]
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    steps += [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGITS else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _check_header(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        magic, head = stream.read(4), stream.read(20)
    if magic != b"GGUF":
        raise UserError(f"{file}: is no GGUF file: it must begin with b'GGUF', got {magic!r}")
    if len(head) < 20:
        raise UserError(f"{file}: header: truncated at byte {size}")
    version = int.from_bytes(head[:4], "little")
    if version not in (2, 3):
        raise UserError(f"{file}: version: must be 2 or 3, got {version}")
    for name, start, least in (("tensor_count", 4, _LEAST_TENSOR), ("metadata_kv_count", 12, _LEAST_ENTRY)):
        if (count := int.from_bytes(head[start : start + 8], "little")) * least > size:
            raise UserError(f"{file}: {name}: {count} do not fit in the file's {size} bytes")


def _parse_config(values: Mapping[str, Any], tensors: Mapping[str, Any], subject: str) -> DecoderConfig:
    kind = str(values.get("general.architecture"))
    refuse_architecture(subject, kind, _ARCHITECTURES)
    prefix = f"{kind}."
    own = {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    found = read_keys(own, {**KEYS, **_OWN_KEYS.get(kind, {})}, subject, prefix=prefix)
    shapes = {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in tensors.items()}
    width, heads = found["embedding_length"], found["attention.head_count"]
    length, window = found["context_length"], found["attention.sliding_window"]
    kv_heads = found["attention.head_count_kv"] or heads
    features = found["attention.key_length"] or width // heads
    rotated = found["rope.dimension_count"] or features
    if kind == PHI3:
        length = min(length, found["rope.scaling.original_context_length"] or length) if SHORT in tensors else length
    errors = [
        f"{prefix}{name}: must be {features}, got {found[name]}"
        for name in ("attention.value_length", "rope.dimension_count")
        if found[name] not in (None, features) and (name, kind) != ("rope.dimension_count", PHI3)
    ]
    if kind == PHI3 and (rotated % 2 or rotated > features):
        errors.append(f"{prefix}rope.dimension_count: must be even and at most {features}, got {rotated}")
    if window and window < length and kind not in (GEMMA3, PHI3):
        errors.append(f"{prefix}attention.sliding_window: must be >= context_length {length}, got {window}")
    residual = found.get("residual_scale", 1.0)
    if not 0 < (epsilon := found["attention.layer_norm_rms_epsilon"] / residual**2) < 1:
        errors.append(f"{prefix}residual_scale: must be > sqrt(attention.layer_norm_rms_epsilon), got {residual}")
    if heads % kv_heads:
        errors.append(f"{prefix}attention.head_count_kv: must divide attention.head_count {heads}, got {kv_heads}")
    if features % 2 or not features:
        errors.append(f"{prefix}attention.key_length: must be even, got {features}")
    if len(shapes.get("token_embd.weight", ())) != 2:
        errors.append("token_embd.weight: missing or no matrix")
    refuse(errors, subject)
    layers = found["block_count"]
    windowed: Collection[int] = ()
    if kind == GEMMA3 and window:
        windowed = list_windowed(layers, found["attention.sliding_window_pattern"])
    elif window and window < length:
        windowed = range(layers)
    if kind == PHI3:
        scaling = _parse_factors(found, tensors, rotated, features, subject, prefix)
    else:
        scaling = _parse_scaling(found, tensors, features, subject, prefix)
    return DecoderConfig(
        *(shapes["token_embd.weight"][0], width, found["block_count"], heads),
        *(kv_heads, features, found["feed_forward_length"], length),
        rope_theta=found["rope.freq_base"],
        epsilon=epsilon,
        activation="gelu_tanh" if kind == GEMMA3 else "silu",
        tied="output.weight" not in shapes,
        qk_norm=kind in ("qwen3", GEMMA3),
        joint_qk_norm=kind == OLMO2,
        norm_after=kind == OLMO2,
        norm_twice=kind == GEMMA3,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        out_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_down.bias" in shapes,
        rope_scaling=scaling,
        unrotated=list_unrotated(kind, layers),
        attention_scale=compute_query_scale(width, heads, features, layers)
        if kind == GEMMA3
        else found.get("attention.scale", 0.0),
        window=window if windowed else 0,
        windowed=tuple(windowed),
        window_theta=found["rope.freq_base_swa"] if kind == GEMMA3 and windowed else 0.0,
    )


def list_windowed(layers: int, pattern: int = _PATTERN) -> tuple[int, ...]:
    """Return the layers of Gemma 3 with a window.

    Args:
        layers: How many.
        pattern: One layer of so many has none.
    """
    return tuple(layer for layer in range(layers) if (layer + 1) % pattern)


def compute_query_scale(width: int, heads: int, features: int, layers: int) -> float:
    """Return what llama.cpp multiplies Gemma 3's queries by: of the largest model another number.

    Args:
        width: Hidden size.
        heads: Query heads.
        features: Per head.
        layers: How many.
    """
    return float((width // heads if layers == _LARGEST else features) ** -0.5)


def list_unrotated(architecture: str, layers: int) -> tuple[int, ...]:
    """Return the layers without rotary positions, which llama.cpp has in its code.

    Args:
        architecture: llama.cpp's.
        layers: How many.
    """
    return tuple(range(3, layers, 4)) if architecture == "smollm3" else ()


def _parse_scaling(
    found: Mapping[str, Any], tensors: Mapping[str, Any], features: int, subject: str, prefix: str
) -> RopeScaling | None:
    """Return the rotary positions' scaling as llama.cpp computes it; 0 as a factor is 1 there."""
    kind, factor = found["rope.scaling.type"], found["rope.scaling.factor"] or found["rope.scale_linear"] or 1.0
    is_scaled = kind == "yarn" or (kind == "linear" and factor != 1)
    errors = [f"{prefix}rope.scaling.factor: must be >= 1, got {factor}"] if is_scaled and factor < 1 else []
    if kind != "yarn" and (magnitude := found["rope.scaling.attn_factor"]) != 1:
        errors.append(f"{prefix}rope.scaling.attn_factor: must be 1 with type {kind!r}, got {magnitude}")
    if FREQUENCIES in tensors:
        if is_scaled:
            errors.append(f"{FREQUENCIES}: not supported with rope.scaling.type {kind!r}")
        factors = [float(value) for value in tensors[FREQUENCIES].data.reshape(-1)]
        if len(factors) != features // 2 or not all(1 <= value < math.inf for value in factors):
            errors.append(f"{FREQUENCIES}: must be {features // 2} numbers >= 1, got {factors[:4]}")
        refuse(errors, subject)
        return _recognise_factors(factors, features, found["rope.freq_base"])
    refuse(errors, subject)
    if not is_scaled:
        return None
    if kind == "linear":
        return RopeScaling(kind, factor)
    return RopeScaling(
        *(kind, factor, found["rope.scaling.original_context_length"] or found["context_length"]),
        beta_fast=found["rope.scaling.yarn_beta_fast"],
        beta_slow=found["rope.scaling.yarn_beta_slow"],
        attention_factor=found["rope.scaling.attn_factor"] * get_yarn_magnitude(factor),
    )


def _parse_factors(
    found: Mapping[str, Any], tensors: Mapping[str, Any], rotated: int, features: int, subject: str, prefix: str
) -> RopeScaling | None:
    """Return the scaling of Phi's positions."""
    short, magnitude = None, 1.0
    if SHORT in tensors:
        short, magnitude = (
            [float(value) for value in tensors[SHORT].data.reshape(-1)],
            found["rope.scaling.attn_factor"],
        )
        if len(short) != rotated // 2 or not all(0 < value < math.inf for value in short):
            refuse([f"{SHORT}: must be {rotated // 2} numbers > 0, got {short[:4]}"], subject)
    factor = found["rope.scaling.factor"] or found["rope.scale_linear"] or 1.0
    refuse([f"{prefix}rope.scaling.factor: must be 1, got {factor}"] if factor != 1 else [], subject)
    return build_partial_rope(found["rope.freq_base"], features, rotated, short, magnitude)


def _recognise_factors(factors: list[float], features: int, theta: float) -> RopeScaling:
    """Return Llama 3's scaling if its published parameters give the file's divisors, else the divisors."""
    published = RopeScaling("llama3", max(factors), 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    if np.allclose(list_divisors(published, features, theta), factors, rtol=1e-5):
        return published
    return RopeScaling("factors", factors=tuple(factors))


def list_divisors(scaling: RopeScaling, features: int, theta: float) -> list[float]:
    """Return `rope_freqs.weight`, what a scaling divides each frequency by.

    Args:
        scaling: A `llama3` or `factors` scaling.
        features: Per head.
        theta: The frequencies' base.
    """
    frequencies = compute_frequencies(theta, features, None)
    return list(frequencies / compute_frequencies(theta, features, scaling))


def list_parts(config: DecoderConfig, architecture: str) -> dict[str, tuple[str, ...]]:
    """Return the tensors that each weight stacks, by the weight's name.

    Args:
        config: The decoder's.
        architecture: llama.cpp's.
    """
    parts: dict[str, tuple[str, ...]] = {
        "embedding": ("token_embd.weight",),
        "norm.weight": ("output_norm.weight",),
        "head": ("output.weight",),
    }
    names = {"norm1": ("attn_norm",), "qkv": ("attn_q", "attn_k", "attn_v"), "out": ("attn_output",)}
    names |= {"norm2": ("ffn_norm",), "up": ("ffn_gate", "ffn_up"), "down": ("ffn_down",)}
    names |= {"out_norm": ("post_attention_norm",), "down_norm": ("post_ffw_norm",)}
    if architecture == OLMO2:
        names |= {"norm1": names["out_norm"], "norm2": names["down_norm"]}
    if architecture == PHI3:
        names |= {"qkv": ("attn_qkv",), "up": ("ffn_up",)}
    for index in range(config.layers):
        for name, sources in names.items():
            for kind in ("weight", "bias"):
                parts[f"layers.{index}.{name}.{kind}"] = tuple(f"blk.{index}.{source}.{kind}" for source in sources)
        for name, source in (("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm")):
            parts[f"layers.{index}.{name}"] = (f"blk.{index}.{source}.weight",)
    return parts


class _GgufReader:
    def __init__(self, tensors: Mapping[str, Any], config: DecoderConfig, *, interleaved: bool) -> None:
        self._tensors, self._config, self._interleaved = tensors, config, interleaved

    def get_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> NDArray[np.float32]:
        import gguf

        tensor = self._tensors[name]
        shape = self.get_shapes()[name]
        try:
            array: NDArray[np.float32] = (
                gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False).reshape(shape)
            )
        except (NotImplementedError, ValueError) as error:
            raise UserError(f"{name}: {tensor.tensor_type.name} cannot be dequantized: {error}") from None
        if self._interleaved and name.split(".")[-2] in ("attn_q", "attn_k"):
            # llama.cpp stores the two halves of each rotary pair in neighbouring rows.
            pairs = array.reshape(-1, self._config.head_size // 2, 2, *shape[1:])
            array = pairs.swapaxes(1, 2).reshape(shape)
        return array
