"""The fields that an answer must match: response_format, structured_outputs and guided_*."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from mindsporeserver.errors import shorten_text
from mindsporeserver.language.errors import LanguageError
from mindsporeserver.language.fields.values import check_size, check_text, describe, read_list, refuse

_MAX_CHOICES = 1024
_MAX_SCHEMA_BYTES = 64 << 10
# The conversion from llama.cpp's form takes 1 s for 40 KiB.
_MAX_GRAMMAR = 16 << 10
GUIDED = ("json", "regex", "choice", "grammar")
# Keys of structured_outputs beside the constraints, as above.
_STRUCTURE_OPTIONS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("structural_tag", "whitespace_pattern"), ()),
    **dict.fromkeys(("disable_fallback", "disable_any_whitespace"), (False, True)),
    "disable_additional_properties": (False,),
}


@dataclass(frozen=True)
class Constraint:
    """What an answer must match.

    Args:
        kind: json for a JSON schema, regex, or grammar for one in Lark's or llama.cpp's form.
        text: The schema, expression or grammar.
        param: The request's field.
    """

    kind: Literal["json", "regex", "grammar"]
    text: str
    param: str


def parse_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """Return what the answer must match, None without a constraint."""
    found = [_parse_response_format(body.get("response_format"))]
    found += [_CONSTRAINTS[key](value, param) for param, key, value in _list_constraints(body)]
    constraints = [item for item in found if item is not None]
    if len(constraints) > 1:
        first, second, *_ = (item.param for item in constraints)
        raise LanguageError(f"{second}: only one constraint is possible, got {first} too", second)
    return constraints[0] if constraints else None


def _list_constraints(body: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield vLLM's constraints: the field, the kind and the value."""
    for key in GUIDED:
        if body.get(f"guided_{key}") is not None:
            yield f"guided_{key}", key, body[f"guided_{key}"]
    structured = body.get("structured_outputs")
    if structured is not None and not isinstance(structured, dict):
        raise refuse("structured_outputs", "an object", structured)
    for key, value in (structured or {}).items():
        param = f"structured_outputs.{shorten_text(key, 64)}"
        if value is None:
            continue
        if key in _CONSTRAINTS:
            yield param, key, value
        elif value not in _STRUCTURE_OPTIONS.get(key, ()):
            raise LanguageError(f"{param}: is not supported by this server, got {describe(value)}", param)


def _parse_response_format(value: Any) -> Constraint | None:
    kind = "text" if value is None else value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        # llama.cpp's clients send a schema here.
        return _parse_schema(value.get("schema", _OBJECT), "response_format.schema")
    if kind != "json_schema":
        raise refuse("response_format.type", "text, json_object or json_schema", kind)
    described = value.get("json_schema")
    schema = described.get("schema", {}) if isinstance(described, dict) else None
    return _parse_schema(schema, "response_format.json_schema.schema")


def _parse_schema(value: Any, param: str) -> Constraint:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise LanguageError(f"{param}: not valid JSON: {error}", param) from None
    return Constraint("json", encode_schema(value, param), param)


def _parse_regex(value: Any, param: str) -> Constraint:
    return Constraint("regex", check_size(check_text(value, param), param, _MAX_SCHEMA_BYTES), param)


def _parse_grammar(value: Any, param: str) -> Constraint:
    return Constraint("grammar", check_size(check_text(value, param), param, _MAX_GRAMMAR), param)


def _parse_choice(value: Any, param: str) -> Constraint:
    texts = [check_text(item, param) for item in read_list(value, param, _MAX_CHOICES, "texts", 1)]
    if "" in texts:
        raise refuse(param, "texts of at least one character", "")
    # Lark has JSON's literals.
    grammar = "start: " + " | ".join(map(json.dumps, texts))
    return Constraint("grammar", check_size(grammar, param, _MAX_SCHEMA_BYTES), param)


def _parse_object(value: Any, param: str) -> Constraint | None:
    if not isinstance(value, bool):
        raise refuse(param, "true or false", value)
    return _parse_schema(_OBJECT, param) if value else None


_OBJECT: Mapping[str, Any] = {"type": "object"}
# By the key of structured_outputs, and after `guided_`.
_CONSTRAINTS: Mapping[str, Callable[[Any, str], Constraint | None]] = {
    "json": _parse_schema,
    "regex": _parse_regex,
    "choice": _parse_choice,
    "grammar": _parse_grammar,
    "json_object": _parse_object,
}


def encode_schema(schema: Any, param: str) -> str:
    """Return a JSON schema as text.

    Raises:
        LanguageError: It is no object or too large.
    """
    if not isinstance(schema, dict):
        raise refuse(param, "a JSON schema, an object", schema)
    try:
        text = orjson.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise LanguageError(f"{param}: is no valid JSON: {error}", param) from None
    if len(text) > _MAX_SCHEMA_BYTES:
        raise refuse(param, f"a schema of at most {_MAX_SCHEMA_BYTES} bytes", text.decode())
    return text.decode()
