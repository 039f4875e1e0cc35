"""GGUF files: metadata, dequantized tensors, tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.lm.network import DecoderConfig
from kfp_mindspore.lm.sources.model import (
    SourceModel,
    name_fields,
    read_weights,
    refuse_architecture,
    refuse_fields,
)

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# None splits by the byte level's own expression.
SPLITS = {"gpt-2": None, "smollm": None, "llama-bpe": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")}
CONTROL, USER_DEFINED = 3, 4
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
    config, kind = _parse_config(values, reader, str(file)), str(values["general.architecture"])
    tokenizer = build_tokenizer(values, config.vocabulary_size, str(file))
    tensors = _GgufReader({tensor.name: tensor for tensor in reader.tensors}, config, interleaved=kind == "llama")
    weights = read_weights(config, tensors, list_parts(config), subject=str(file), ignored=("rope_freqs.weight",))
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
        kind,
    )


def build_tokenizer(values: Mapping[str, Any], size: int, subject: str) -> str:
    """Return tokenizer.json of the metadata.

    Args:
        values: The metadata by key.
        size: Rows of the embedding.
        subject: The file, for messages.

    Raises:
        UserError: The tokenizer's kind is not supported, or its tables do not fit; the message names the key.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    model, pre = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2":
        raise UserError(f"{subject}: tokenizer.ggml.model: must be 'gpt2' (byte-level BPE), got {model!r}")
    if pre not in SPLITS:
        raise UserError(f"{subject}: tokenizer.ggml.pre: must be one of {', '.join(SPLITS)}, got {pre!r}")
    tokens, merges = values.get("tokenizer.ggml.tokens", []), values.get("tokenizer.ggml.merges", [])
    kinds = values.get("tokenizer.ggml.token_type", [1] * len(tokens))
    for name, count in (("tokens", len(tokens)), ("token_type", len(kinds))):
        if count != size:
            raise UserError(f"{subject}: tokenizer.ggml.{name}: must have {size} entries, got {count}")
    table = {token: index for index, token in enumerate(tokens)}
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        first, _, second = merge.partition(" ")
        if first not in table or second not in table or first + second not in table:
            raise UserError(f"{subject}: tokenizer.ggml.merges: {merge!r} does not fit the tokens")
        pairs.append((first, second))
    tokenizer = Tokenizer(models.BPE(table, pairs))
    split = SPLITS[pre]
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    steps += [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    for wanted, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [token for token, kind in zip(tokens, kinds, strict=True) if kind == wanted]
        tokenizer.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    if values.get("tokenizer.ggml.add_bos_token"):
        number = int(values["tokenizer.ggml.bos_token_id"])
        bos = tokens[number]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, number)]
        )
    return str(tokenizer.to_str())


def _check_header(file: Path) -> None:
    size = file.stat().st_size
    with file.open("rb") as stream:
        magic, head = stream.read(4), stream.read(20)
    if magic != b"GGUF":
        raise UserError(f"{file}: magic: must be b'GGUF', got {magic!r}")
    if len(head) < 20:
        raise UserError(f"{file}: header: truncated at byte {size}")
    version = int.from_bytes(head[:4], "little")
    if version not in (2, 3):
        raise UserError(f"{file}: version: must be 2 or 3, got {version}")
    for name, start, least in (("tensor_count", 4, _LEAST_TENSOR), ("metadata_kv_count", 12, _LEAST_ENTRY)):
        if (count := int.from_bytes(head[start : start + 8], "little")) * least > size:
            raise UserError(f"{file}: {name}: {count} do not fit in the file's {size} bytes")


def _parse_config(values: Mapping[str, Any], reader: Any, subject: str) -> DecoderConfig:
    kind = values.get("general.architecture")
    refuse_architecture(subject, kind, _ARCHITECTURES)
    scaling = values.get(f"{kind}.rope.scaling.type", "none")
    window, experts = values.get(f"{kind}.attention.sliding_window"), values.get(f"{kind}.expert_count")
    shapes = {tensor.name: tuple(int(size) for size in tensor.shape[::-1]) for tensor in reader.tensors}
    with name_fields(subject):
        width, heads = values[f"{kind}.embedding_length"], values[f"{kind}.attention.head_count"]
        size = values.get(f"{kind}.attention.key_length") or width // heads
        rotated, length = values.get(f"{kind}.rope.dimension_count", size), values[f"{kind}.context_length"]
        refuse_fields(
            subject,
            {
                f"{kind}.rope.scaling.type": scaling != "none" and f"must be 'none', got {scaling!r}",
                f"{kind}.rope.dimension_count": rotated != size and f"must be {size}, got {rotated}",
                f"{kind}.attention.sliding_window": window and window < length and f"not supported, got {window}",
                f"{kind}.expert_count": experts and "mixtures of experts are not supported",
                "rope_freqs.weight": "rope_freqs.weight" in shapes and "scaled rotary positions are not supported",
                "token_embd.weight": len(shapes.get("token_embd.weight", ())) != 2 and "missing or no matrix",
            },
        )
        return DecoderConfig(
            *(shapes["token_embd.weight"][0], width, values[f"{kind}.block_count"], heads),
            *(
                values.get(f"{kind}.attention.head_count_kv", heads),
                size,
                values[f"{kind}.feed_forward_length"],
                length,
            ),
            rope_theta=values.get(f"{kind}.rope.freq_base", 10000.0),
            epsilon=values[f"{kind}.attention.layer_norm_rms_epsilon"],
            tied="output.weight" not in shapes,
            qk_norm=kind == "qwen3",
            qkv_bias="blk.0.attn_q.bias" in shapes,
            out_bias="blk.0.attn_output.bias" in shapes,
            mlp_bias="blk.0.ffn_down.bias" in shapes,
        )


def list_parts(config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """Return the tensors that each weight stacks, by its name.

    Args:
        config: The decoder's.
    """
    parts: dict[str, tuple[str, ...]] = {
        "embedding": ("token_embd.weight",),
        "norm.weight": ("output_norm.weight",),
        "head": ("output.weight",),
    }
    names = {"norm1": ("attn_norm",), "qkv": ("attn_q", "attn_k", "attn_v"), "out": ("attn_output",)}
    names |= {"norm2": ("ffn_norm",), "up": ("ffn_gate", "ffn_up"), "down": ("ffn_down",)}
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
