"""Subwords of texts by Hugging Face's library tokenizers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kfp_mindspore.errors import UserError, require_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_SIZE = 8000
"""Ids of a tokenizer that is trained without another size."""

_PADDING, _UNKNOWN = "[PAD]", "[UNK]"
_PADDINGS = (_PADDING, "<pad>", "<|pad|>")
_BYTES = 256
LEAST_SIZE = _BYTES + 2
"""Ids of all bytes, padding and the unknown token."""


class Subwords:
    """A tokenizer that gives each text the same number of ids; usable by several threads at once.

    Args:
        content: A tokenizer.json's content.
        length: Ids per text.
        side: Side on which a shorter text is padded and a longer one is cut, `right` or `left`.

    Raises:
        MissingExtraError: The library is not installed.
        UserError: The content is no tokenizer, or has no token for padding.
    """

    def __init__(self, content: str, length: int, side: str) -> None:
        self._content = content
        self._tokenizer = _parse(content)
        self.padding: int = _find_padding(json.loads(content))
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size: int = max(vocabulary.values()) + 1
        model = json.loads(content)["model"]
        unknown = vocabulary.get(model.get("unk_token") or "", model.get("unk_id"))
        self._unknown: int | None = unknown
        self.unknown: int = self.padding if unknown is None else int(unknown)
        self._tokenizer.enable_truncation(length, direction=side)
        self._tokenizer.enable_padding(length=length, pad_id=self.padding, direction=side)

    def encode(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """Return int32 ids with shape (N, length)."""
        return np.array([encoding.ids for encoding in self._tokenizer.encode_batch(texts)], np.int32)

    def count_unknown(self, texts: Sequence[str]) -> tuple[int, int]:
        """Return how many of the texts' tokens are unknown, and how many tokens there are, without the cut."""
        ids = [index for row in self._encode_whole(texts) for index in row]
        return sum(index == self._unknown for index in ids), len(ids)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return each text's token count, without the cut."""
        return list(map(len, self._encode_whole(texts)))

    def _encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer = _parse(self._content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def train_tokenizer(texts: Iterable[str], size: int, lowercase: bool) -> str:
    """Return the content of a tokenizer.json, a byte-level BPE (byte pair encoding) of the texts: no text is unknown.

    Args:
        texts: The training texts.
        size: Most ids; 0 for `DEFAULT_SIZE`.
        lowercase: Whether texts are compared in lower case.

    Raises:
        MissingExtraError: The library is not installed.
    """
    library = _import_tokenizers()
    tokenizer = library.Tokenizer(library.models.BPE(unk_token=_UNKNOWN))
    normalizers = [library.normalizers.NFC(), *([library.normalizers.Lowercase()] if lowercase else [])]
    tokenizer.normalizer = library.normalizers.Sequence(normalizers)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size or DEFAULT_SIZE,
        min_frequency=2,
        special_tokens=[_PADDING, _UNKNOWN],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


def read_tokenizer(file: str) -> str:
    """Return a tokenizer.json's content.

    Raises:
        UserError: It cannot be read, or is no tokenizer.
    """
    try:
        content = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Tokenize: tokenizer: {file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(
            f"Tokenize: tokenizer: {file}: must be a tokenizer.json (UTF-8), got another encoding"
        ) from None
    try:
        _find_padding(_load_json(content))
        _parse(content)
    except UserError as error:
        raise UserError(f"{file}: {error.message}", hint=error.hint) from None
    return content


def _import_tokenizers() -> Any:
    with require_extra("tokenizers", "tokenizers"):
        import tokenizers
        import tokenizers.trainers
    return tokenizers


def _parse(content: str) -> Any:
    library = _import_tokenizers()
    _load_json(content)
    try:
        return library.Tokenizer.from_str(content)
    except Exception as error:
        # The library raises no narrower class (0.23).
        raise UserError(
            f"Tokenize: tokenizer: not a tokenizer that tokenizers {library.__version__} reads: {error}"
        ) from error


def _load_json(content: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise UserError(f"Tokenize: tokenizer: must be a tokenizer.json, got no JSON ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
        raise UserError(
            "Tokenize: tokenizer: must be a tokenizer.json, an object with `model`",
            hint="Write it by Tokenizer.save of the library tokenizers.",
        )
    return found


def _find_padding(content: dict[str, Any]) -> int:
    if isinstance(content.get("padding"), dict):
        return int(content["padding"]["pad_id"])
    tokens = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    found = next((tokens[name] for name in _PADDINGS if name in tokens), None)
    if found is None:
        raise UserError(
            f"Tokenize: tokenizer: has no token for padding, expected one of {', '.join(_PADDINGS)}",
            hint="Add it: tokenizer.add_special_tokens(['[PAD]']), tokenizer.save('tokenizer.json').",
        )
    return int(found)
