"""Structured output: a JSON schema, expression or grammar as a restriction of the next token, by llguidance."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.constraints import Constraint
from mindsporeserver.language.text import TokenVocabulary

if TYPE_CHECKING:
    from numpy.typing import NDArray

Result = TypeVar("Result")

# Address space of a compilation's stack; pages that it does not reach cost nothing. A constraint has at most 64 KiB.
_STACK_BYTES = 256 << 20
_STACK_LOCK = threading.Lock()
# llguidance's own limits let a schema with 5,000 properties take 6 s, and none have more than 500 properties.
_LIMITS = {
    "initial_lexer_fuel": 200_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 10_000,
    "max_items_in_row": 10_000,
    "verbose_errors": False,
}


class Matcher:
    """The tokens that may follow in an answer that matches a constraint.

    Whitespace outside of JSON's texts is not allowed unless the schema's `x-guidance` allows it: a weak model otherwise
    generates blanks without end.

    Args:
        vocabulary: The model's.
        constraint: The request's.

    Raises:
        LanguageError: The constraint is invalid, not supported or too complex.
    """

    def __init__(self, vocabulary: TokenVocabulary, constraint: Constraint) -> None:
        from llguidance import LLMatcher, LLParserLimits

        self._param = constraint.param
        limits = LLParserLimits(**_LIMITS)
        self.matcher = _run_deeply(
            lambda: LLMatcher(vocabulary.matching, _read(constraint), log_level=0, limits=limits)
        )
        self._size = vocabulary.size
        self._bits = np.zeros((vocabulary.size + 31) // 32, np.int32)
        if self.matcher.is_error():
            raise self._get_error()

    def copy(self) -> Matcher:
        """Return a matcher of the same constraint for another answer: compiling it again takes 20 to 50 ms."""
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
            LanguageError: The constraint exceeds a limit at this token.
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
        return LanguageError(f"{self._param}: cannot be used: {message}", self._param)


def _read(constraint: Constraint) -> str:
    """Return llguidance's form of a constraint."""
    from llguidance import LLMatcher

    text, param = constraint.text, constraint.param
    try:
        if constraint.kind == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        if constraint.kind == "grammar":
            return str(LLMatcher.grammar_from_lark(_convert_to_lark(text)))
        return str(LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": False}))
    except ValueError as error:
        raise LanguageError(f"{param}: cannot be used: {shorten_text(str(error), 500)}", param) from None


def _convert_to_lark(text: str) -> str:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return str(any_to_lark(text))
    except Exception as error:  # noqa: BLE001  it raises Exception itself
        raise ValueError(str(error)) from None


def _run_deeply(function: Callable[[], Result]) -> Result:
    """Return a function's result, computed in a thread with a large stack.

    llguidance 1.9 compiles references and nested groups by recursion without a limit: 1,100 schemas, each an `anyOf` of
    the next, overflow 8 MiB, which ends the server.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            future.set_exception(error)

    with _STACK_LOCK:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="constraint")
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    return future.result()
