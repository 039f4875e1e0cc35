"""T5 and T5 v1.1 in Hugging Face directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig, list_seq2seq_weights
from kfp_mindspore.lm.sources.families import HINT
from kfp_mindspore.lm.sources.fields import (
    COMMON,
    IGNORED,
    MOST_LAYERS,
    MOST_POSITIONS,
    Key,
    alias,
    choice,
    classes,
    flag,
    number,
    only,
    optional,
    read_keys,
    refuse,
    size,
)
from kfp_mindspore.lm.sources.huggingface import open_weights, read_generation, read_json, read_tokenizer
from kfp_mindspore.lm.sources.model import read_tensors
from kfp_mindspore.lm.sources.safetensors import SafetensorsReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ARCHITECTURES = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
# The activation, and whether the network is gated.
_FEED_FORWARD = {"relu": ("relu", False), "gated-gelu": ("gelu_tanh", True)}
_TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
# transformers' keys with their defaults (4.57).
KEYS: Mapping[str, Key] = {
    **COMMON,
    "architectures": classes(*ARCHITECTURES),
    "is_encoder_decoder": only(True),
    "vocab_size": size(32128),
    "d_model": size(512),
    "d_kv": size(64),
    "d_ff": size(2048),
    "num_layers": size(6, most=MOST_LAYERS),
    "num_decoder_layers": optional(size(None, most=MOST_LAYERS)),
    "num_heads": size(8),
    "relative_attention_num_buckets": size(32),
    "relative_attention_max_distance": size(128),
    "layer_norm_epsilon": number(1e-6, below=1),
    "feed_forward_proj": choice("relu", _FEED_FORWARD),
    # transformers writes these two beside it, and believes them.
    "dense_act_fn": IGNORED,
    "is_gated_act": IGNORED,
    "tie_word_embeddings": flag(True),
    # Null follows `tie_word_embeddings`.
    "scale_decoder_outputs": optional(flag(None)),
    "n_positions": size(512, most=MOST_POSITIONS),
    "pad_token_id": size(0, least=0),
    "dropout_rate": IGNORED,
    "hidden_size": alias("d_model"),
    "num_attention_heads": alias("num_heads"),
    "num_hidden_layers": alias("num_layers"),
    "head_dim": alias("d_kv"),
}
# Old checkpoints have it; the network has no positions there.
_IGNORED = ("EncDecAttention.relative_attention_bias.weight",)


@dataclass(frozen=True)
class SourceSeq2Seq:
    """A published encoder-decoder.

    Args:
        config: The encoder-decoder's.
        weights: float32 arrays by the network's names.
        tokenizer: tokenizer.json.
        generation: `decoder_start_token_id`, `eos_token_id`, `pad_token_id` and sampling defaults.
        architecture: The source's name for it.
    """

    config: Seq2SeqConfig
    weights: Mapping[str, NDArray[np.float32]]
    tokenizer: str
    generation: Mapping[str, Any]
    architecture: str

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        found = self.generation["eos_token_id"]
        return (found,) if isinstance(found, int) else tuple(found)


def read_t5(directory: Path) -> SourceSeq2Seq:
    """Read a directory as `save_pretrained` writes it.

    Args:
        directory: With config.json.

    Raises:
        NotFoundError: A file is missing.
        UserError: The architecture or a variant is not supported, or a file is damaged; the message names the field.
    """
    values = read_json(directory / "config.json")
    config = parse_t5(values, str(directory / "config.json"))
    tokenizer = read_tokenizer(directory)
    reader = _T5Reader(open_weights(directory), tied=config.tied, subject=str(directory))
    parts = _list_parts(config)
    weights = read_tensors(list_seq2seq_weights(config), parts, reader, subject=str(directory), ignored=_IGNORED)
    found = read_generation(directory, values)
    generation: dict[str, Any] = {"decoder_start_token_id": config.pad_id, "eos_token_id": 1}
    names = ("decoder_start_token_id", "eos_token_id", "temperature", "top_p", "top_k", "repetition_penalty")
    generation |= {name: found[name] for name in names if found.get(name) is not None}
    if not found.get("do_sample"):
        generation["temperature"] = 0
    model = SourceSeq2Seq(
        config,
        weights,
        tokenizer,
        {**generation, "pad_token_id": config.pad_id},
        "t5",
    )
    _check_tokenizer(model, directory / "tokenizer.json")
    return model


def parse_t5(values: Mapping[str, Any], subject: str) -> Seq2SeqConfig:
    """Return the encoder-decoder's configuration from a config.json.

    Args:
        values: The file's content.
        subject: The file's path, for messages.

    Raises:
        UserError: The architecture or a variant is not supported, or a field is missing.
    """
    found = read_keys(values, KEYS, subject, hint=HINT)
    activation, is_gated = _FEED_FORWARD[found["feed_forward_proj"]]
    derived = {"dense_act_fn": "gelu_new" if is_gated else "relu", "is_gated_act": is_gated}
    refuse(
        [
            f"{name}: must be {value!r} with feed_forward_proj {found['feed_forward_proj']!r}, got {values[name]!r}"
            for name, value in derived.items()
            if values.get(name) not in (None, value)
        ],
        subject,
    )
    return Seq2SeqConfig(
        *(found["vocab_size"], found["d_model"], found["num_layers"]),
        *(found["num_decoder_layers"] or found["num_layers"], found["num_heads"]),
        *(found["d_kv"], found["d_ff"], found["n_positions"]),
        buckets=found["relative_attention_num_buckets"],
        max_distance=found["relative_attention_max_distance"],
        epsilon=found["layer_norm_epsilon"],
        activation=activation,
        gated=is_gated,
        tied=found["tie_word_embeddings"],
        scaled=found["tie_word_embeddings"]
        if found["scale_decoder_outputs"] is None
        else found["scale_decoder_outputs"],
        pad_id=found["pad_token_id"],
    )


def _check_tokenizer(model: SourceSeq2Seq, file: Path) -> None:
    """Raise unless the tokenizer ends a text, as the encoder and the training need it."""
    from tokenizers import Tokenizer

    ids = Tokenizer.from_str(model.tokenizer).encode("a").ids
    if not ids or ids[-1] not in model.eos_ids:
        raise UserError(
            f"{file}: post_processor: must end a text with eos_token_id {model.generation['eos_token_id']}, got "
            f"{ids[-1] if ids else 'no token'}",
            hint="Save the tokenizer by transformers, which adds the end token.",
        )


def _list_parts(config: Seq2SeqConfig) -> dict[str, tuple[str, ...]]:
    parts: dict[str, tuple[str, ...]] = {"embedding": ("shared.weight",), "head": ("lm_head.weight",)}
    up = ("wi_0", "wi_1") if config.gated else ("wi",)
    for stack, layers in (("encoder", config.layers), ("decoder", config.decoder_layers)):
        last = 1 if stack == "encoder" else 2
        names = {"qkv": [f"0.SelfAttention.{part}" for part in "qkv"], "out": ["0.SelfAttention.o"]}
        names |= {"query": ["1.EncDecAttention.q"], "key_value": [f"1.EncDecAttention.{part}" for part in "kv"]}
        names |= {"cross_out": ["1.EncDecAttention.o"], "down": [f"{last}.DenseReluDense.wo"]}
        names |= {"up": [f"{last}.DenseReluDense.{part}" for part in up]}
        names |= {f"norm{index + 1}": [f"{index}.layer_norm"] for index in range(last + 1)}
        parts[f"{stack}.bias"] = (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
        parts[f"{stack}.norm"] = (f"{stack}.final_layer_norm.weight",)
        for index in range(layers):
            for name, sources in names.items():
                tensors = tuple(f"{stack}.block.{index}.layer.{source}.weight" for source in sources)
                parts[f"{stack}.layers.{index}.{name}"] = tensors
    return parts


class _T5Reader(SafetensorsReader):
    """T5's tensors without the embedding's copies.

    Args:
        reader: The directory's.
        tied: Whether the head is a copy.
        subject: The directory, for messages.

    Raises:
        UserError: A copy differs from the embedding.
    """

    def __init__(self, reader: SafetensorsReader, *, tied: bool, subject: str) -> None:
        import numpy as np

        copies = [name for name in _TIED[: 3 if tied else 2] if name in reader.entries]
        if "shared.weight" in reader.entries:
            shared = reader.read("shared.weight")
            if differing := [name for name in copies if not np.array_equal(reader.read(name), shared)]:
                raise UserError(f"{subject}: {differing[0]}: differs from the embedding, which it has to be")
        self.entries = {name: entry for name, entry in reader.entries.items() if name not in copies}
