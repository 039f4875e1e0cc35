"""`seq2seq` bundles.

network.json          the encoder-decoder's configuration, from which graphs are built at load
weights.safetensors   the weights, float32
tokenizer.json, generation.json
prompts.npz           verified prompts: `ids.<n>`, the first token's logits `logits.<n>`, the greedy answer `greedy.<n>`
signature.json        digests over all, see kfp_mindspore.formats.bundle
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.formats.bundle import GENERATION_FILE, SEQ2SEQ_KIND, TOKENIZER_FILE
from kfp_mindspore.lm.network.seq2seq import Seq2SeqConfig, list_seq2seq_weights
from kfp_mindspore.lm.serving.greedy import compute_steps, generate
from kfp_mindspore.lm.serving.network_files import open_kind, read_network_files, write_network
from kfp_mindspore.lm.serving.seq2seq_runner import Seq2SeqRunner
from kfp_mindspore.lm.sources.t5 import SourceSeq2Seq
from kfp_mindspore.mindir.devices import require_cpu

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PROMPTS = ("two hundred and six", "translate English to German: The house is wonderful.")
_GREEDY = 8
_SLOTS = 8


class Rewriter:
    """Rewrites texts by an encoder-decoder and its tokenizer.

    Args:
        model: The encoder-decoder.
        tokenizer: The model's; it ends a source itself where the model needs that.
    """

    def __init__(self, model: SourceSeq2Seq, tokenizer: Tokenizer) -> None:
        self.runner, self.tokenizer = build_runner(model, _SLOTS), tokenizer
        self._eos_ids = model.eos_ids

    def rewrite(self, texts: Iterable[str], *, max_tokens: int = 64) -> list[str]:
        """Return the greedy answer to each text.

        Args:
            texts: Sources.
            max_tokens: Most tokens in an answer.

        Raises:
            ValidationError: A text has no token or too many, or `max_tokens` is out of range.
        """
        sources = [np.array(encoding.ids, np.int32) for encoding in self.tokenizer.encode_batch(list(texts))]
        self.runner.check(sources, max_tokens)
        # Sources of one length are computed by one graph.
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        ordered = [sources[index] for index in order]
        answers = generate(self.runner, ordered, max_tokens=max_tokens, eos_ids=self._eos_ids)
        found = dict(zip(order, answers, strict=True))
        return [self.tokenizer.decode(found[index].tolist()) for index in range(len(sources))]


def write_seq2seq_model(model: SourceSeq2Seq, bundle: Path, *, subject: str) -> float:
    """Write an encoder-decoder as a bundle.

    Args:
        model: The model.
        bundle: The bundle's directory; replaced when it exists.
        subject: The model's origin, for messages.

    Returns:
        The cached graphs' largest difference from the full forward pass, relative to the largest logit.

    Raises:
        KfpMindSporeError: It is more than 1e-5.
    """
    from tokenizers import Tokenizer

    tokenizer, runner = Tokenizer.from_str(model.tokenizer), build_runner(model, 1)
    arrays: dict[str, NDArray[Any]] = {}
    pairs = []
    for number, prompt in enumerate(_PROMPTS):
        ids = np.array(tokenizer.encode(prompt).ids[: model.config.max_length], np.int32)
        tokens, logits = compute_steps(runner, ids, min(_GREEDY, model.config.max_length))
        arrays |= {f"ids.{number}": ids, f"logits.{number}": logits[0], f"greedy.{number}": tokens}
        pairs.append((logits, runner.score(ids, tokens)))
    texts = {GENERATION_FILE: json.dumps(dict(model.generation), indent=2)}
    return write_network(bundle, model, SEQ2SEQ_KIND, arrays, pairs, texts, subject=subject)


def read_seq2seq_model(bundle: Path) -> SourceSeq2Seq:
    """Read a bundle as a model, such as one whose weights a training replaces.

    Args:
        bundle: The bundle's directory.

    Raises:
        UserError: It is no `seq2seq` bundle, or damaged; the message names the file.
    """
    opened = open_kind(bundle, SEQ2SEQ_KIND)
    config, weights = read_network_files(bundle, Seq2SeqConfig, list_seq2seq_weights)
    generation = json.loads((bundle / GENERATION_FILE).read_text())
    tokenizer = (bundle / TOKENIZER_FILE).read_text()
    return SourceSeq2Seq(config, weights, tokenizer, generation, opened.signature.metadata["architecture"])


def build_runner(model: SourceSeq2Seq, slots: int) -> Seq2SeqRunner:
    """Return a model's network for the longest sources and answers.

    Args:
        model: The model.
        slots: Sequences at once.
    """
    return Seq2SeqRunner(model, slots=slots, max_length=2 * model.config.max_length)


def load(directory: Path | str, *, slots: int, max_length: int) -> Seq2SeqRunner:
    """Load a bundle's network; its graphs are not compiled yet.

    Args:
        directory: The bundle.
        slots: Sequences at once.
        max_length: Most tokens in a source and its answer.

    Raises:
        CorruptBundleError: The configuration or weights are not readable; the message names the file.
    """
    require_cpu("language models, whose caches are the host's memory")
    return Seq2SeqRunner(read_seq2seq_model(Path(directory)), slots=slots, max_length=max_length)


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
    return Rewriter(model, tokenizer)
