"""BERT in Hugging Face directories, with sentence-transformers' files for pooling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.network.encoder import EncoderConfig, list_encoder_weights
from kfp_mindspore.lm.sources.families import HINT
from kfp_mindspore.lm.sources.fields import (
    COMMON,
    IGNORED,
    MOST_LAYERS,
    MOST_POSITIONS,
    Key,
    choice,
    classes,
    flag,
    number,
    off,
    only,
    optional,
    read_keys,
    refuse,
    size,
)
from kfp_mindspore.lm.sources.huggingface import open_weights, read_json, read_tokenizer
from kfp_mindspore.lm.sources.model import read_tensors, refuse_fields
from kfp_mindspore.lm.sources.safetensors import SafetensorsReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ARCHITECTURES = ("BertModel", "BertForMaskedLM")
# transformers' keys with their defaults (4.57).
KEYS: Mapping[str, Key] = {
    **COMMON,
    "architectures": classes(*ARCHITECTURES),
    "vocab_size": size(30522),
    "hidden_size": size(768),
    "num_hidden_layers": size(12, most=MOST_LAYERS),
    "num_attention_heads": size(12),
    "intermediate_size": size(3072),
    "hidden_act": choice("gelu", ("gelu", "relu")),
    "max_position_embeddings": size(512, most=MOST_POSITIONS),
    "type_vocab_size": size(2),
    "layer_norm_eps": number(1e-12, below=1),
    "position_embedding_type": only("absolute"),
    "is_decoder": off(),
    # Of the head for masked tokens, which an embedding does not use.
    "tie_word_embeddings": IGNORED,
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), IGNORED),
    # Of the pooler, which an embedding does not use.
    **dict.fromkeys(("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"), IGNORED),
    **dict.fromkeys(("pooler_size_per_head", "pooler_type", "directionality"), IGNORED),
}
# Of sentence_bert_config.json; its other keys change no embedding.
_TEXTS = {"max_seq_length": optional(size(None)), "do_lower_case": flag(False)}
_MODULES = ("Transformer", "Pooling", "Normalize")
_POOLING = {"mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls"}
_IGNORED = (".position_ids", "pooler.dense.weight", "pooler.dense.bias")


@dataclass(frozen=True)
class SourceEncoder:
    """A published embedding model.

    Args:
        config: The encoder's.
        weights: float32 arrays by the network's names.
        tokenizer: tokenizer.json.
        architecture: The source's name for it.
    """

    config: EncoderConfig
    weights: Mapping[str, NDArray[np.float32]]
    tokenizer: str
    architecture: str


def read_bert(directory: Path) -> SourceEncoder:
    """Read a directory as `save_pretrained` or sentence-transformers writes it.

    Args:
        directory: With config.json.

    Raises:
        NotFoundError: A file is missing.
        UserError: The architecture or a variant is not supported, or a file is damaged; the message names the field.
    """
    values = read_json(directory / "config.json")
    config = parse_bert(values, read_pooling(directory), str(directory / "config.json"))
    tokenizer = read_tokenizer(directory)
    reader = _BertReader(open_weights(directory))
    parts = _list_parts(config)
    weights = read_tensors(list_encoder_weights(config), parts, reader, subject=str(directory), ignored=_IGNORED)
    return SourceEncoder(config, weights, tokenizer, "bert")


def parse_bert(values: Mapping[str, Any], pooling: Mapping[str, Any], subject: str) -> EncoderConfig:
    """Return the encoder's configuration from a config.json.

    Args:
        values: The file's content.
        pooling: As `read_pooling` returns it.
        subject: The file's path, for messages.

    Raises:
        UserError: The architecture or a variant is not supported, or a field is missing.
    """
    found = read_keys(values, KEYS, subject, hint=HINT)
    width, heads, positions = found["hidden_size"], found["num_attention_heads"], found["max_position_embeddings"]
    refuse([f"num_attention_heads: must divide hidden_size {width}, got {heads}"] if width % heads else [], subject)
    return EncoderConfig(
        *(found["vocab_size"], width, found["num_hidden_layers"], heads),
        *(found["intermediate_size"], positions, found["type_vocab_size"]),
        epsilon=found["layer_norm_eps"],
        activation=found["hidden_act"],
        **{"max_length": positions, **pooling},
    )


def read_pooling(directory: Path) -> dict[str, Any]:
    """Return `EncoderConfig`'s pooling fields from modules.json and the files that it names.

    Without modules.json, the tokens' mean state is not normalised, as sentence-transformers does.

    Args:
        directory: The model's.

    Raises:
        NotFoundError: A named file is missing.
        UserError: A module or a pooling mode is not supported.
    """
    file = directory / "modules.json"
    if not file.is_file():
        return {}
    try:
        modules = {str(item["type"]).rpartition(".")[2]: str(item["path"]) for item in json.loads(file.read_text())}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{file}: must be a list of modules with type and path: {error!r}") from None
    unknown = [name for name in modules if name not in _MODULES]
    refuse_fields(str(file), {name: f"not supported, only {', '.join(_MODULES)}" for name in unknown})
    if modules.get("Transformer", ""):
        raise UserError(f"{file}: Transformer: path must be the model's directory, got {modules['Transformer']!r}")
    found: dict[str, Any] = {"normalised": "Normalize" in modules}
    if "Pooling" in modules:
        file = directory / Path(modules["Pooling"]).name / "config.json"
        values = read_json(file)
        prefix = "pooling_mode_"
        modes = [name.removeprefix(prefix) for name, value in values.items() if name.startswith(prefix) and value]
        modes = modes or [str(values.get("pooling_mode", "none"))]
        if len(modes) != 1 or modes[0] not in _POOLING:
            raise UserError(f"{file}: pooling_mode: must be mean_tokens or cls_token, got {', '.join(modes)}")
        found["pooling"] = _POOLING[modes[0]]
    file = directory / "sentence_bert_config.json"
    values = read_json(file, required=False)
    values = read_keys({name: values[name] for name in _TEXTS if name in values}, _TEXTS, str(file))
    if values["max_seq_length"]:
        found["max_length"] = values["max_seq_length"]
    return {**found, "lower_case": values["do_lower_case"]}


def _list_parts(config: EncoderConfig) -> dict[str, tuple[str, ...]]:
    parts: dict[str, tuple[str, ...]] = {
        name: (f"embeddings.{source}.weight",)
        for name, source in (
            ("embedding", "word_embeddings"),
            ("positions", "position_embeddings"),
            ("types", "token_type_embeddings"),
        )
    }
    names = {"qkv": tuple(f"attention.self.{part}" for part in ("query", "key", "value"))}
    names |= {"out": ("attention.output.dense",), "norm1": ("attention.output.LayerNorm",)}
    names |= {"up": ("intermediate.dense",), "down": ("output.dense",), "norm2": ("output.LayerNorm",)}
    for kind in ("weight", "bias"):
        parts[f"norm.{kind}"] = (f"embeddings.LayerNorm.{kind}",)
        for index in range(config.layers):
            for name, sources in names.items():
                tensors = tuple(f"encoder.layer.{index}.{source}.{kind}" for source in sources)
                parts[f"layers.{index}.{name}.{kind}"] = tensors
    return parts


class _BertReader(SafetensorsReader):
    """BERT's tensors without the prefix `bert.` and without pretraining heads."""

    def __init__(self, reader: SafetensorsReader) -> None:
        self.entries = {
            name.removeprefix("bert."): entry for name, entry in reader.entries.items() if not name.startswith("cls.")
        }
