"""SentencePiece tokenizers in GGUF files: BPE whose merges follow from the tokens' scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BLANK = "\u2581"
_NORMAL = 1


def build_sentencepiece(
    table: Mapping[str, int], scores: Sequence[float], kinds: Sequence[int], unknown: str, *, adds_blank: bool
) -> Tokenizer:
    """Return the tokenizer, without special tokens.

    Args:
        table: IDs by token.
        scores: By ID; of two possible merges the one to the token with the higher score comes first.
        kinds: llama.cpp's token types, by ID.
        unknown: The token for what has neither a token nor bytes.
        adds_blank: Whether a blank is added before a text.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    merged = [token for token, number in table.items() if kinds[number] == _NORMAL]
    merged.sort(key=lambda token: -scores[table[token]])
    merges = [
        (token[:cut], token[cut:])
        for token in merged
        for cut in range(1, len(token))
        if token[:cut] in table and token[cut:] in table
    ]
    tokenizer = Tokenizer(models.BPE(dict(table), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend(_BLANK)] if adds_blank else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _BLANK)])
    ends = [decoders.Strip(" ", 1, 0)] if adds_blank else []
    parts = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer
