"""Bundles of the kind `seq2seq`.

network.json          the encoder-decoder's configuration; its graphs are built from it at load
weights.safetensors   the weights, float32
tokenizer.json, generation.json
prompts.npz           verified prompts: `ids.<n>`, the first token's logits `logits.<n>`, the greedy answer `greedy.<n>`
signature.json        digests over all, see kfp_mindspore.formats.bundle
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.lm.network_files import TOKENIZER_FILE, open_kind, read_network_files, write_network
from kfp_mindspore.lm.rewriter import Rewriter, Seq2SeqRunner
from kfp_mindspore.lm.seq2seq import Seq2SeqConfig, list_seq2seq_weights
from kfp_mindspore.lm.sources.t5 import SourceSeq2Seq

KIND = "seq2seq"
GENERATION_FILE = "generation.json"
_PROMPTS = ("two hundred and six", "translate English to German: The house is wonderful.")
_GREEDY = 8


def write_seq2seq_model(model: SourceSeq2Seq, bundle: Path, *, subject: str) -> float:
    """Write an encoder-decoder as a bundle.

    Args:
        model: The model.
        bundle: The bundle's directory; replaced when it exists.
        subject: Its origin, for messages.

    Returns:
        The cached graphs' largest difference from the full forward pass, as a part of the largest logit.

    Raises:
        KfpMindSporeError: It is more than 1e-5.
    """
    from tokenizers import Tokenizer

    tokenizer, runner = Tokenizer.from_str(model.tokenizer), build_runner(model)
    arrays: dict[str, NDArray[Any]] = {}
    pairs = []
    for number, prompt in enumerate(_PROMPTS):
        ids = np.array(tokenizer.encode(prompt).ids[: model.config.max_length], np.int32)
        tokens, logits = runner.generate_steps([ids], max_tokens=min(_GREEDY, model.config.max_length))
        expected = runner.score(ids, tokens[0])
        arrays |= {f"ids.{number}": ids, f"logits.{number}": logits[0, 0], f"greedy.{number}": tokens[0]}
        pairs.append((logits[0], expected))
    texts = {GENERATION_FILE: json.dumps(dict(model.generation), indent=2)}
    return write_network(bundle, model, KIND, arrays, pairs, texts, subject=subject)


def read_seq2seq_model(bundle: Path) -> SourceSeq2Seq:
    """Read a bundle as a model, such as one whose weights a training replaces.

    Args:
        bundle: The bundle's directory.

    Raises:
        UserError: It is no bundle of this kind, or damaged; the message names the file.
    """
    opened = open_kind(bundle, KIND)
    config, weights = read_network_files(bundle, Seq2SeqConfig, list_seq2seq_weights)
    generation = json.loads((bundle / GENERATION_FILE).read_text())
    tokenizer = (bundle / TOKENIZER_FILE).read_text()
    return SourceSeq2Seq(config, weights, tokenizer, generation, opened.signature.metadata["architecture"])


def build_runner(model: SourceSeq2Seq) -> Seq2SeqRunner:
    """Return a model's network for greedy answers."""
    start_id = model.generation["decoder_start_token_id"]
    return Seq2SeqRunner(model.config, model.weights, start_id=start_id, eos_ids=model.eos_ids)


def open_rewriter(bundle: Path) -> Rewriter:
    """Open a bundle for greedy answers in this process.

    Args:
        bundle: The bundle's directory.

    Raises:
        UserError: As `read_seq2seq_model`.
    """
    from tokenizers import Tokenizer

    model = read_seq2seq_model(bundle)
    tokenizer = Tokenizer.from_str(model.tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Rewriter(build_runner(model), tokenizer)
