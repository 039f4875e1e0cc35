"""Texts and images to embed, as vLLM's `messages` have them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.requests import EMBEDDING_FIELDS
from mindsporeserver.language.fields.values import check_text, read_list, refuse

MESSAGE_FIELDS = EMBEDDING_FIELDS | {"messages"}
_MOST_PARTS = 32
# The formats' first bytes, by media type.
_FORMATS = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}
_ALIASES = {"image/jpg": "image/jpeg"}
_DATA_URL = re.compile("data:(?P<type>[^,;]*)(?:;[^,;]*)*;base64", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    """A text or an image.

    Args:
        param: The request's field.
        text: The text; empty for an image.
        image: The file; empty for a text.
    """

    param: str
    text: str = ""
    image: bytes = b""


def parse_parts(value: Any) -> list[Part]:
    """Read messages as the texts and images to embed, one embedding each.

    Args:
        value: The request's `messages`.

    Raises:
        LanguageError: A field is invalid, an image is no data URL or no file of its declared type, or there are too
            many.
    """
    parts: list[Part] = []
    for index, message in enumerate(read_list(value, "messages", _MOST_PARTS, "messages", 1)):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise refuse(where, "an object with role and content", message)
        if message.get("role") != "user":
            raise refuse(f"{where}.role", "user", message.get("role"))
        where, content = f"{where}.content", message.get("content")
        if isinstance(content, str):
            parts.append(Part(where, check_text(content, where)))
            continue
        items = enumerate(read_list(content, where, _MOST_PARTS, "parts", 1))
        parts += [_parse_part(item, f"{where}[{number}]") for number, item in items]
    if len(parts) > _MOST_PARTS:
        raise LanguageError(f"messages: must have at most {_MOST_PARTS} parts in all, got {len(parts)}", "messages")
    return parts


def _parse_part(item: Any, where: str) -> Part:
    kind = item.get("type") if isinstance(item, Mapping) else None
    if kind == "text":
        return Part(where, check_text(item.get("text"), f"{where}.text"))
    if kind != "image_url":
        raise refuse(f"{where}.type", "text or image_url", kind)
    value = item.get("image_url")
    param = f"{where}.image_url"
    if isinstance(value, Mapping):
        value, param = value.get("url"), f"{param}.url"
    return Part(param, image=_decode_url(value, param))


def _decode_url(value: Any, param: str) -> bytes:
    if not isinstance(value, str):
        raise refuse(param, "a data URL", value)
    head, comma, text = value.partition(",")
    found = _DATA_URL.fullmatch(head) if comma else None
    if found is None:
        raise LanguageError(
            f"{param}: must be a data URL such as data:image/png;base64,…: this server fetches no images, got "
            f"{shorten_text(value, 40)!r}",
            param,
        )
    declared = found["type"].lower()
    declared = _ALIASES.get(declared, declared)
    if declared not in _FORMATS:
        raise LanguageError(
            f"{param}: type: must be {' or '.join(_FORMATS)}, got {shorten_text(declared, 40)!r}", param
        )
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LanguageError(f"{param}: must be base64 after the comma", param) from None
    if not content.startswith(_FORMATS[declared]):
        actual = next((name for name, magic in _FORMATS.items() if content.startswith(magic)), "another format")
        raise LanguageError(f"{param}: must be the declared {declared}, is {actual}", param)
    return content
