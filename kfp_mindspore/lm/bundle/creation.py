"""An untrained decoder with a tokenizer trained on the examples, as a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.formats.bundle import OUTPUT
from kfp_mindspore.lm.bundle.causal import write_model
from kfp_mindspore.lm.bundle.untrained import train_tokenizer
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
from kfp_mindspore.lm.options import NetworkOptions
from kfp_mindspore.lm.sources.model import SourceModel
from kfp_mindspore.lm.text.examples import hold_out, open_examples, read_examples
from kfp_mindspore.outputs import check_replaceable

_FIELDS = ("text", "prompt", "completion")
# The embedding is the head too, whose logits are small at first.
_EMBEDDED = 0.02


def create_bundle(data: str, bundle: Path, options: NetworkOptions) -> dict[str, int]:
    """Write an untrained decoder as a bundle, see `build_decoder`.

    Args:
        data: Examples, see `open_examples`.
        bundle: The bundle's directory; replaced when it exists.
        options: See `NetworkOptions`.

    Returns:
        Counts: `weights` and the tokenizer's `vocabulary`.

    Raises:
        UserError: The examples are missing or too few.
        ValidationError: An example is invalid; the message has its number.
    """
    check_replaceable(bundle, OUTPUT, [data])
    with open_examples(data) as file:
        model = build_decoder(read_examples(file), options)
    write_model(model, bundle, subject=data)
    weights = sum(array.size for array in model.weights.values())
    return {"weights": weights, "vocabulary": model.config.vocabulary_size}


def build_decoder(records: Sequence[Mapping[str, Any]], options: NetworkOptions) -> SourceModel:
    """Return an untrained Llama with a byte-level BPE trained on the examples.

    The tokenizer is trained on the examples that a fine-tuning with the same `held_out` trains on.

    Args:
        records: Examples, see `kfp_mindspore.lm.text.data`.
        options: See `NetworkOptions`.

    Raises:
        UserError: The examples are too few to hold out a part.
        ValidationError: An example has no known field; the message has its number.
    """
    from tokenizers import pre_tokenizers, processors

    training, _ = hold_out(records, options.held_out)
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    texts = (text for record in training for name in _FIELDS if isinstance(text := record.get(name), str))
    tokenizer = train_tokenizer(texts, options.vocabulary, ["<s>", "</s>"], split)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    config = DecoderConfig(
        tokenizer.get_vocab_size(),
        options.width,
        options.layers,
        heads=options.heads,
        kv_heads=options.heads,
        head_size=options.width // options.heads,
        hidden=3 * options.width,
        max_length=options.max_length,
        tied=True,
    )
    random = np.random.default_rng(options.seed)
    weights = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else random.normal(0, _EMBEDDED if name == "embedding" else shape[1] ** -0.5, shape).astype(np.float32)
        for name, shape in list_weights(config).items()
    }
    return SourceModel(config, weights, tokenizer.to_str(), "", {"bos_token_id": 0, "eos_token_id": 1}, "llama")
