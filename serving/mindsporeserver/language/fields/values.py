"""Checked values of a request's JSON; an error names the field as `param`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import orjson

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError

_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_body(body: bytes) -> dict[str, Any]:
    """Return a request's JSON object; NaN and Infinity are read, so that the error can name their field.

    Raises:
        LanguageError: The body is no JSON object, or a text in it is no valid Unicode.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            raise LanguageError(f"body: not valid JSON: {error}") from None
        # orjson refuses lone surrogates, so only these bodies can have them.
        _check_surrogates(value)
    if not isinstance(value, dict):
        raise LanguageError(f"body: must be a JSON object, got {type(value).__name__}")
    return value


def read_text(body: Mapping[str, Any], name: str) -> str:
    """Return a required text field.

    Raises:
        LanguageError: It is missing or no text.
    """
    return check_text(body.get(name), name)


def read_number(body: Mapping[str, Any], name: str, least: float, most: float, *, whole: bool = False) -> Any:
    """Return a number between two bounds, None without the field."""
    value = body.get(name)
    if value is not None and not is_number(value, least, most, whole=whole):
        bounds = f"≥ {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise refuse(name, f"{'an integer' if whole else 'a number'} {bounds}", value)
    return value


def is_number(value: Any, least: float, most: float, *, whole: bool = False) -> bool:
    """Return whether a value is a number between two bounds."""
    # JSON's true is an int to Python; NaN compares as false.
    return isinstance(value, int if whole else (int, float)) and not isinstance(value, bool) and least <= value <= most


def read_list(value: Any, param: str, most: int, what: str, least: int = 0) -> list[Any]:
    """Return a list of `least` to `most` items."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise refuse(param, f"a list of {least} to {most} {what}", value)
    return value


def read_bool(body: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """Return a boolean field, the default without it."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refuse(name, "true or false", value)
    return default if value is None else value


def check_text(value: Any, param: str) -> str:
    """Return a value that must be a text."""
    if not isinstance(value, str):
        raise refuse(param, "a text", value)
    return value


def _check_surrogates(body: Any) -> None:
    """Raise for the first text with a lone surrogate, which can be sent to no tokenizer; the path is the `param`."""
    waiting: list[tuple[str, Any]] = [("", body)]
    while waiting:
        param, value = waiting.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                raise LanguageError(f"{param or 'body'}: must be valid Unicode, got a lone surrogate", param or None)
        elif isinstance(value, list):
            waiting += reversed([(f"{param}[{index}]", item) for index, item in enumerate(value)])
        elif isinstance(value, dict):
            # A key is named by its object.
            waiting += reversed(
                [pair for key, item in value.items() for pair in ((param, key), (join_path(param, key), item))]
            )


def join_path(param: str, key: str) -> str:
    """Return the path of an object's key, for a message."""
    return f"{param}.{shorten_text(key, 64)}" if param else shorten_text(key, 64)


def parse_ids(value: Any, vocabulary_size: int, param: str) -> tuple[int, ...]:
    """Return token IDs of the vocabulary, at least one."""
    if not isinstance(value, list) or not value:
        raise refuse(param, "a text or a list of token IDs", value)
    for item in value:
        if not is_number(item, 0, vocabulary_size - 1, whole=True):
            raise refuse(param, f"token IDs from 0 to {vocabulary_size - 1}", item)
    return tuple(value)


def check_size(text: str, param: str, most: int) -> str:
    """Return a text of at most `most` characters."""
    if len(text) > most:
        raise refuse(param, f"at most {most} characters", text)
    return text


def refuse(param: str, expected: str, value: Any) -> LanguageError:
    """Return the error for an invalid value."""
    return LanguageError(f"{param}: must be {expected}, got {describe(value)}", param)


def describe(value: Any) -> str:
    """Return a client's value for a message, shortened."""
    if isinstance(value, (list, dict, str)) and len(value) > 40:
        return f"a {type(value).__name__} of length {len(value)}"
    return shorten_text(repr(value), 80)
