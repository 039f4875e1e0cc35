"""Structured output: a JSON schema as a restriction of the next token, by llguidance."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.text import Vocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

# llguidance's own limits let a schema with 5,000 properties take 6 s, and none have more than 500 properties.
_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 10_000,
    "max_items_in_row": 10_000,
    "verbose_errors": False,
}


class Matcher:
    """The tokens that may follow in an answer that matches a JSON schema.

    Whitespace outside of texts is not allowed unless the schema's `x-guidance` allows it: a weak model otherwise
    generates blanks without end.

    Args:
        vocabulary: The model's.
        schema: JSON schema as text.
        param: The request's field, for errors.

    Raises:
        LanguageError: The schema is invalid, not supported or too complex.
    """

    def __init__(self, vocabulary: Vocabulary, schema: str, param: str) -> None:
        from llguidance import LLMatcher, LLParserLimits

        self._param = param
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False})
        except ValueError as error:
            raise LanguageError(f"{param}: not a JSON schema: {error}", param) from None
        self.matcher = LLMatcher(vocabulary.matching, grammar, log_level=0, limits=LLParserLimits(**_LIMITS))
        self._size = vocabulary.size
        self._bits = np.zeros((vocabulary.size + 31) // 32, np.int32)
        if self.matcher.is_error():
            raise self._get_error()

    def copy(self) -> Matcher:
        """Return a matcher of the same schema for another answer: compiling it again takes 20 to 50 ms."""
        other = copy.copy(self)
        other.matcher = self.matcher.deep_copy()
        return other

    @property
    def is_stopped(self) -> bool:
        """Whether the answer is complete."""
        return bool(self.matcher.is_stopped())

    def compute_mask(self) -> NDArray[np.bool_]:
        """Return whether each token may follow, with shape (V,).

        Raises:
            LanguageError: The schema exceeds a limit at this token.
        """
        self.matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        mask = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little").view(np.bool_)
        if self.matcher.is_error() or not mask.any():
            raise self._get_error()
        return mask

    def consume(self, token: int) -> None:
        """Record a chosen token."""
        self.matcher.consume_token(token)

    def _get_error(self) -> LanguageError:
        message = shorten_text(self.matcher.get_error() or "no token may follow", 500)
        return LanguageError(f"{self._param}: a schema that cannot be used: {message}", self._param)
