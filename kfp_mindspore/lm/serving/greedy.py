"""Greedy answers by a network with caches per slot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Slots(Protocol):
    """A network with caches per slot: `CausalRunner` or `Seq2SeqRunner`."""

    slots: int
    max_length: int

    def prefill(self, slot: int, ids: NDArray[Any], position: int) -> NDArray[np.float32]:
        """Compute a prompt, and return the last position's logits (V,)."""

    def decode(self, slots: Sequence[int], ids: NDArray[Any], positions: NDArray[np.int32]) -> NDArray[np.float32]:
        """Compute one token for each sequence, and return logits (B, V)."""


def generate(
    runner: Slots, prompts: Sequence[NDArray[np.int32]], *, max_tokens: int, eos_ids: Collection[int]
) -> list[NDArray[np.int32]]:
    """Answer prompts by greedy decoding.

    Args:
        runner: The network.
        prompts: Token IDs, each with shape (n,).
        max_tokens: Most tokens in an answer.
        eos_ids: The tokens that end an answer.

    Returns:
        Token IDs without the one that ends the answer, each with shape (n,).
    """
    answers: list[list[int]] = []
    for start in range(0, len(prompts), runner.slots):
        group = prompts[start : start + runner.slots]
        # All slots are computed, so that one graph serves the last group too.
        tokens, positions = np.zeros((2, runner.slots), np.int32)
        for slot, ids in enumerate(group):
            tokens[slot], positions[slot] = runner.prefill(slot, ids, 0).argmax(), len(ids)
        found: list[list[int]] = [[] for _ in group]
        running = set(range(len(group)))
        while running:
            for slot in list(running):
                ends = int(tokens[slot]) in eos_ids
                if not ends:
                    found[slot].append(int(tokens[slot]))
                if ends or len(found[slot]) >= max_tokens or positions[slot] >= runner.max_length:
                    running.discard(slot)
                    # Its last row is computed again until the others end.
                    positions[slot] -= 1
            if running:
                computed = runner.decode(range(runner.slots), tokens, positions).argmax(-1)
                for slot in running:
                    tokens[slot] = computed[slot]
                    positions[slot] += 1
        answers += found
    return [np.array(answer, np.int32) for answer in answers]


def compute_steps(runner: Slots, ids: NDArray[np.int32], count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return a greedy answer of `count` tokens, whatever ends it, int32 (count,), and their logits, float32 (count, V).

    Args:
        runner: The network; slot 0 is used.
        ids: The prompt's token IDs with shape (n,).
        count: At least 1.
    """
    logits = [runner.prefill(0, ids, 0)]
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        position = np.array([len(ids) + len(tokens) - 1], np.int32)
        logits.append(runner.decode(range(1), np.array(tokens[-1:], np.int32), position)[0])
        tokens.append(int(logits[-1].argmax()))
    return np.array(tokens, np.int32), np.stack(logits)
