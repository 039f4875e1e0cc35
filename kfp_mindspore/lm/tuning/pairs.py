"""An encoder-decoder's training examples, and its measures on held-out ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.metrics import compute_perplexity
from kfp_mindspore.lm.seq2seq_bundle import open_rewriter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Pair = tuple[str, str]


def read_pairs(records: Sequence[Mapping[str, Any]], subject: str) -> list[Pair]:
    """Return records' prompts and completions.

    Args:
        records: The records.
        subject: Their file, for messages.

    Raises:
        ValidationError: A record lacks the prompt or the completion; the message has its number, from 1.
    """
    pairs = []
    for number, record in enumerate(records, 1):
        pair = (record.get("prompt"), record.get("completion"))
        if not all(isinstance(text, str) for text in pair):
            found = ", ".join(record) or "no field"
            raise ValidationError(
                [f"an encoder-decoder needs the texts prompt and completion, got {found}"],
                subject=f"{subject}: example {number}",
            )
        pairs.append((str(pair[0]), str(pair[1])))
    return pairs


def encode_parts(
    parts: Sequence[Sequence[Pair]], tokenizer: Tokenizer, *, start_id: int, pad_id: int, length: int
) -> tuple[list[dict[str, NDArray[Any]]], list[int]]:
    """Return each part's arrays in the same shape, and how many pairs are left out as too long.

    Args:
        parts: Pairs to train on, and held-out ones.
        tokenizer: The model's.
        start_id: The decoder's first token.
        pad_id: Token that pads.
        length: Most tokens in a prompt, and in a completion.

    Raises:
        UserError: A part has no pair within the length.
    """
    kept, dropped = [], []
    for pairs in parts:
        sizes = [
            max(len(tokenizer.encode(text).ids) for text in pair) for pair in pairs
        ]  # both ends have the end token
        kept.append([pair for pair, size in zip(pairs, sizes, strict=True) if size <= length])
        dropped.append(len(pairs) - len(kept[-1]))
        if not kept[-1]:
            raise UserError(
                f"length: no example of a part has at most {length} tokens in its prompt and its completion",
                hint="Set a larger length, or give more examples.",
            )
    arrays = build_pairs([pair for pairs in kept for pair in pairs], tokenizer, start_id=start_id, pad_id=pad_id)
    divided, start = [], 0
    for pairs in kept:
        divided.append({name: array[start : start + len(pairs)] for name, array in arrays.items()})
        start += len(pairs)
    return divided, dropped


def build_pairs(
    pairs: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, start_id: int, pad_id: int
) -> dict[str, NDArray[Any]]:
    """Return sources and targets as `fit`'s data for a `TrainedSeq2Seq`.

    Args:
        pairs: Sources and targets.
        tokenizer: The model's, which ends sources and targets.
        start_id: The decoder's first token.
        pad_id: Token that pads both.

    Returns:
        `source` int32 (N, S), `ids` and `next_ids` int32 (N, T), `counts` float32 (N, T); the longest source has S
        tokens, the longest target T.

    Raises:
        ValidationError: There are no pairs.
    """
    if not pairs:
        raise ValidationError(["pairs: at least one is needed, got none"])
    sources, targets = ([row.ids for row in tokenizer.encode_batch([pair[side] for pair in pairs])] for side in (0, 1))
    source, ids, next_ids = (
        np.full((len(pairs), max(map(len, texts))), pad_id, np.int32) for texts in (sources, targets, targets)
    )
    counts = np.zeros(ids.shape, np.float32)
    ids[:, 0] = start_id
    for row, (text, target) in enumerate(zip(sources, targets, strict=True)):
        source[row, : len(text)] = text
        ids[row, 1 : len(target)] = target[:-1]
        next_ids[row, : len(target)] = target
        counts[row, : len(target)] = 1
    return {"source": source, "ids": ids, "next_ids": next_ids, "counts": counts}


class PairEvaluator:
    """One bundle's perplexity and greedy answers.

    Args:
        bundle: The bundle's directory.

    Raises:
        UserError: It is no `seq2seq` bundle, or damaged.
    """

    def __init__(self, bundle: Path) -> None:
        self._rewriter = open_rewriter(bundle)

    def compute_perplexity(self, pairs: Sequence[Pair], length: int) -> tuple[float, int]:
        """Return the completions' perplexity, and how many tokens they have.

        Args:
            pairs: Prompts and completions.
            length: Most tokens in either; the rest is cut.
        """
        runner, tokenizer, losses = self._rewriter.runner, self._rewriter.tokenizer, []
        for pair in pairs:
            source, target = (np.array(tokenizer.encode(text).ids[:length], np.int32) for text in pair)
            logits = runner.score(source, target).astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            losses.append(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(target)), target])
        joined = np.concatenate(losses)
        return compute_perplexity(joined, np.ones(len(joined))), len(joined)

    def answer(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """Return the greedy answers."""
        return [answer.strip() for answer in self._rewriter.rewrite(prompts, max_tokens=max_tokens)]
