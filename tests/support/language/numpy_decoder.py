"""A tiny decoder in NumPy: attention over a cache per slot, as the served network has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.errors import UserError

TEXTS = ("the quick brown fox jumps over the lazy dog ", "Wie schön ist das Wetter in Zürich, für 5 € 你好 ")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    # As Qwen3's.
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}"
    "{% if reasoning_effort is defined %}Reasoning: {{ reasoning_effort }}\n{% endif %}"
)


def write_tokenizer(file: Path) -> int:
    """Train a byte-level BPE tokenizer, and return its vocabulary size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS * 4,
        trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    tokenizer.save(str(file))
    return int(tokenizer.get_vocab_size())


class NumpyDecoder:
    """One attention layer with random weights; rows do not depend on the batch.

    Args:
        vocabulary_size: Rows of the embedding.
        max_length: Tokens per slot.
        slots: Sequences at once.
        poison: Token after which the logits are NaN; it is sampled with a bias of 100 only.
    """

    def __init__(
        self, vocabulary_size: int, *, max_length: int = 256, slots: int = 4, width: int = 16, poison: int | None = None
    ) -> None:
        random = np.random.default_rng(7)
        self.vocabulary_size, self.max_length, self.slots = vocabulary_size, max_length, slots
        self.row_bytes, self.adapter_bytes, self.graph_bytes, self.whole_prompts = 2 * width * 4, 0, 0, False
        self._poison = poison
        self._embedding = random.normal(size=(vocabulary_size, width)).astype(np.float32)
        self._positions = random.normal(size=(max_length, width)).astype(np.float32)
        self._projections = [random.normal(size=(width, width)).astype(np.float32) for _ in range(3)]
        self._head = random.normal(size=(width, vocabulary_size)).astype(np.float32)
        self._cache = np.zeros((slots, max_length, 2, width), np.float32)
        self._shifts = {0: np.zeros(width, np.float32)}
        self.batches: list[int] = []
        self.chunks: list[int] = []

    def prefill(
        self,
        slot: int,
        ids: np.ndarray[Any, Any],
        position: int,
        *,
        adapter: int = 0,
        all_positions: bool = False,
    ) -> np.ndarray[Any, Any]:
        self.chunks.append(len(ids))
        rows = np.stack([self._compute(slot, int(token), position + index, adapter) for index, token in enumerate(ids)])
        return rows if all_positions else rows[-1]

    def decode(
        self,
        slots: Sequence[int],
        ids: np.ndarray[Any, Any],
        positions: np.ndarray[Any, Any],
        adapters: Sequence[int] = (),
    ) -> np.ndarray[Any, Any]:
        assert list(slots) == list(range(len(slots)))
        self.batches.append(len(slots))
        rows = zip(slots, ids.tolist(), positions.tolist(), adapters or [0] * len(slots), strict=True)
        return np.stack([self._compute(*row) for row in rows])

    def read_adapter(self, directory: Path) -> Callable[[int], None]:
        """Read a seed from `adapter_config.json`; an adapter shifts the hidden states, and so the cache rows."""
        file = directory / "adapter_config.json"
        if not file.is_file():
            raise UserError(f"{file}: not found")
        width = self._embedding.shape[1]
        shift = np.random.default_rng(int(file.read_text())).normal(size=width).astype(np.float32)
        return lambda number: self._shifts.update({number: shift})

    def list_compilations(self) -> list[Callable[[], Any]]:
        return []

    def read_rows(self, slot: int, start: int, stop: int) -> np.ndarray[Any, Any]:
        return self._cache[slot, start:stop].copy()

    def write_rows(self, slot: int, start: int, rows: np.ndarray[Any, Any]) -> None:
        self._cache[slot, start : start + len(rows)] = rows

    def _compute(self, slot: int, token: int, position: int, adapter: int) -> np.ndarray[Any, Any]:
        hidden = self._embedding[token] + self._positions[position] + self._shifts[adapter]
        query, key, value = (hidden @ matrix for matrix in self._projections)
        self._cache[slot, position] = key, value
        keys, values = self._cache[slot, : position + 1, 0], self._cache[slot, : position + 1, 1]
        scores = keys @ query / 4
        weights = np.exp(scores - scores.max())
        logits = np.tanh(hidden + weights @ values / weights.sum()) @ self._head
        if self._poison is not None:
            logits[self._poison] = -60
        return np.full_like(logits, np.nan) if token == self._poison else logits


def write_decoder_bundle(path: Path, kind: str = "causal-lm", template: str = TEMPLATE) -> int:
    """Write a language model's bundle without a network, and return the vocabulary's size."""
    import json

    from kfp_mindspore.formats.bundle import Signature, write_bundle

    with write_bundle(path) as writer:
        size = write_tokenizer(writer.directory / "tokenizer.json") + 3
        (writer.directory / "chat_template.jinja").write_text(template)
        generation = {"eos_token_id": [2, 0], "bos_token_id": 0, "pad_token_id": 0}
        (writer.directory / "generation.json").write_text(json.dumps(generation))
        for name in ("model.mindir", "weights.safetensors"):
            (writer.directory / name).write_bytes(b"")
        writer.sign(Signature((), (), "2.9.0", metadata={"kind": kind, "max_length": "100000"}))
    return size
