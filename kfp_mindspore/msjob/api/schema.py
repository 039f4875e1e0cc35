"""A dataclass's structural schema, for a CustomResourceDefinition."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kfp_mindspore.kube.pod_schema import Schema, build_pod_schema
from kfp_mindspore.msjob.api.manifest import to_field_name
from kfp_mindspore.options import Limits, read_descriptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int32"},
    datetime.datetime: {"type": "string", "format": "date-time"},
}


class FieldWords(Limits, total=False):
    """OpenAPI keywords of a field, and what `limit` reads from them."""

    default: Any
    format: str
    maxLength: int
    required: bool
    definition: str
    default_factory: Callable[[], Any]


def limit(**words: Unpack[FieldWords]) -> Any:
    """Return an optional dataclass field with further schema keywords.

    Args:
        words: OpenAPI keywords, such as `minimum=1`; `required=True`; `definition="Quantity"` for a Kubernetes
            definition; the dataclasses' `default_factory`. The API server applies a `default`; in Python None stays.
    """
    factory = words.pop("default_factory", None)
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=words)
    return dataclasses.field(default=None, metadata=words)


def describe_class(kind: type[Any], extras: Mapping[str, Mapping[str, Any]] | None = None) -> Schema:
    """Return a dataclass's schema, with its docstring's descriptions.

    Args:
        kind: The dataclass.
        extras: Field name to OpenAPI keywords, for fields without `limit`.
    """
    hints = typing.get_type_hints(kind)
    texts = _read_docstring(kind)
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for field in dataclasses.fields(kind):
        words = {**field.metadata, **(extras or {}).get(field.name, {})}
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if words.pop("required", not has_default):
            required.append(to_field_name(field.name))
        definition = words.pop("definition", None)
        schema = _describe_type(hints[field.name], definition, extras)
        description = {"description": texts[field.name]} if field.name in texts else {}
        properties[to_field_name(field.name)] = {**schema, **description, **words}
    described: Schema = {"description": texts[""], "type": "object", "properties": properties}
    return {**described, "required": sorted(required)} if required else described


def _describe_type(
    hint: Any, definition: str | None = None, extras: Mapping[str, Mapping[str, Any]] | None = None
) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _describe_type(next(item for item in arguments if item is not types.NoneType), definition, extras)
    if origin in (list, tuple):
        return {"type": "array", "items": _describe_type(arguments[0], definition, extras)}
    if origin is dict:
        if arguments[1] is not Any:
            return {"type": "object", "additionalProperties": _describe_type(arguments[1], definition, extras)}
        if definition == "Quantity":
            return {"type": "object", "additionalProperties": build_pod_schema(definition)}
        return build_pod_schema(definition) if definition else {"type": "object"}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return describe_class(hint, extras)
    return dict(_PLAIN[hint])


def _read_docstring(kind: type[Any]) -> dict[str, str]:
    """Return the first paragraph of a docstring under the empty name, and the description of each attribute."""
    texts = {"": (inspect.getdoc(kind) or "").split("\n\n")[0], **read_descriptions(kind)}
    return {name: " ".join(text.replace("`", "").split()) for name, text in texts.items()}
