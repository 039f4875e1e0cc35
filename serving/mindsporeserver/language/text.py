"""Tokens to text and back: a tokenizer, and texts that grow token by token."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer

# The token of the byte 0xFF, byte-level and as a fallback.
_LAST_BYTE = ("\u00ff", "<0xFF>")


class TokenVocabulary:
    """A model's tokenizer.

    Args:
        file: tokenizer.json.
        size: The network's vocabulary size, at least the tokenizer's.
        eos_ids: Tokens that end an answer; at least one.

    Raises:
        MissingExtraError: tokenizers or llguidance is not installed.
        UserError: The tokenizer cannot be read.
    """

    def __init__(self, file: Path, size: int, eos_ids: Iterable[int]) -> None:
        try:
            from llguidance import LLTokenizer
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError(error.name or "tokenizers", "lm") from None
        self.size = size
        self.eos_ids = frozenset(eos_ids)
        try:
            self.tokenizer: Tokenizer = Tokenizer.from_file(str(file))
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()
            self.matching: LLTokenizer = LLTokenizer(
                _write_matchable(self.tokenizer), n_vocab=size, eos_token=sorted(self.eos_ids)
            )
        except Exception as error:  # noqa: BLE001  tokenizers raises Exception itself
            raise UserError(f"{file}: not a tokenizer that can be served: {error}") from None
        added: dict[int, Any] = self.tokenizer.get_added_tokens_decoder()
        self.special_ids = {number for number, token in added.items() if token.special} | self.eos_ids
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def longest(self) -> int:
        """The longest token's character count."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return a text's token IDs."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token IDs, special tokens included."""
        return b"".join(map(self.get_bytes, ids)).decode("utf-8", "replace")

    def get_bytes(self, token: int) -> bytes:
        """Return a token's bytes, which may be a part of a character."""
        if token not in self._bytes:
            # Networks have more rows than their tokenizers have tokens.
            name = self.tokenizer.id_to_token(token)
            found = b"" if name is None else self.matching.decode_bytes([token])
            # llguidance takes the byte 0xFF for its mark of special tokens.
            self._bytes[token] = b"\xff" if not found and name in _LAST_BYTE else found
        return self._bytes[token]

    def list_stop_ids(self, stops: Iterable[str]) -> set[int]:
        """Return the special tokens among stop texts: they have no text in an answer."""
        ids = {self.tokenizer.token_to_id(stop) for stop in stops}
        return {number for number in ids if number is not None and number in self.special_ids}


def _write_matchable(tokenizer: Tokenizer) -> str:
    """Return tokenizer.json with a decoder that llguidance 1.3 reads: it knows no Metaspace, which T5 has."""
    described = json.loads(tokenizer.to_str())
    if (described.get("decoder") or {}).get("type") == "Metaspace":
        replace = {"type": "Replace", "pattern": {"String": described["decoder"]["replacement"]}, "content": " "}
        described["decoder"] = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return json.dumps(described)


class TextBuffer:
    """An answer's text, in pieces that hold neither half a character nor the beginning of a stop text.

    Args:
        stops: Texts that end the answer and are not part of it.
        is_whole: Whether the answer is a text of its own, whose first blank is the tokenizer's.
    """

    def __init__(self, stops: Sequence[str] = (), *, is_whole: bool = False) -> None:
        self._strips = is_whole
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.is_stopped = False

    def push(self, data: bytes, *, may_stop: bool = True) -> str:
        """Add a token's bytes and return the text that is certain now.

        Args:
            data: The bytes.
            may_stop: Whether a stop text up to here ends the answer.
        """
        piece = self._decoder.decode(data)
        if self._strips and piece:
            self._strips, piece = False, piece.removeprefix(" ")
        if not may_stop:
            return piece
        self._held += piece
        ends = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            self.is_stopped = True
            text, self._held = self._held[: min(ends)], ""
            return text
        length = max((match_beginning(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - length
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def flush(self) -> str:
        """Return the rest at the answer's end."""
        if self.is_stopped:
            return ""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return text


def match_beginning(text: str, marker: str) -> int:
    """Return how many of a marker's first characters, but not all, a text ends with."""
    lengths = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
