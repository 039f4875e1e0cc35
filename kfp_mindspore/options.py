"""Options as dataclass fields: the one declaration from which other forms derive.

A field has a type, a default, limits (`option(3, minimum=0)`) and a description under `Args:` of the class's docstring.
Command-line options (`kfp_mindspore.cli.shared.dataclass_options`), environment JSON, JSON schema and reference tables
are derived from these. Signatures that must be literal, such as a KFP component's, are compared with the declaration by
`tests/unit/test_option_signatures.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from kfp_mindspore.canonical import to_canonical_json
from kfp_mindspore.errors import UserError, ValidationError

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MISSING: Any = dataclasses.MISSING
_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:[ ]{4}.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}\**(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
# Python type to the type of a JSON schema and to words.
_JSON_TYPES: Mapping[Any, tuple[str, str]] = {
    bool: ("boolean", "True or False"),
    int: ("integer", "an integer"),
    float: ("number", "a number"),
    str: ("string", "a string"),
    list: ("array", "a list"),
    dict: ("object", "a dict"),
}

Options = TypeVar("Options")


class Limits(TypedDict, total=False):
    """A field's limits, keywords of JSON schema."""

    enum: Sequence[Any]
    minimum: float
    maximum: float
    exclusiveMinimum: float
    exclusiveMaximum: float
    pattern: str


def option(default: Any = _MISSING, **words: Unpack[Limits]) -> Any:
    """Return a dataclass field with limits.

    Args:
        default: The default; a list or dict is copied for each instance.
        words: The limits.
    """
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=functools.partial(type(default), default), metadata=words)
    return dataclasses.field(default=default, metadata=words)


@dataclass(frozen=True)
class Option:
    """One field of a declaration.

    Args:
        name: Name of the field.
        kind: `bool`, `int`, `float`, `str`, `list` or `dict`; `object` for any other or mixed type.
        item: Type of a list's items or a dict's values, as `kind`.
        is_optional: Whether None is allowed.
        default: The default; `dataclasses.MISSING` for a required field.
        description: Text of the docstring, on one line.
        limits: Keywords of JSON schema.
    """

    name: str
    kind: type[Any]
    item: type[Any]
    is_optional: bool
    default: Any
    description: str
    limits: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """First sentence of the description, without the period."""
        return re.split(r"\.\s", self.description, maxsplit=1)[0].rstrip(".")

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        return self.default is _MISSING

    @property
    def is_repeatable(self) -> bool:
        """Whether a command line gives the option once for each item."""
        return self.kind is list or (self.kind is dict and self.item is str)

    @property
    def literal_default(self) -> Any:
        """The default in a signature whose types have no None, such as a KFP component's."""
        if self.default is None:
            return {str: "", list: [], dict: {}, bool: False}.get(self.kind, 0)
        return list(self.default) if isinstance(self.default, tuple) else self.default

    @property
    def schema(self) -> dict[str, Any]:
        """The field's JSON schema."""
        schema = _build_type(self.kind)
        if self.kind is list and self.item is not object:
            schema["items"] = _build_type(self.item)
        if self.kind is dict and self.item is not object:
            schema["additionalProperties"] = _build_type(self.item)
        default = {} if self.is_required or self.default is None else {"default": self.literal_default}
        return {**schema, "description": self.description, **default, **self.limits}

    def list_errors(self, value: Any) -> list[str]:
        """Return one sentence for each violation: `backoff_limit: must be an integer ≥ 0, got -1`.

        Args:
            value: The field's value. None is valid where it is allowed.
        """
        if value is None:
            return [] if self.is_optional else [f"{self.name}: must be {self._describe()}, got None"]
        if not _is_instance(value, self.kind) or not self._is_within(value):
            return [f"{self.name}: must be {self._describe()}, got {value!r}"]
        items = enumerate(value) if self.kind is list else value.items() if self.kind is dict else ()
        return [
            f"{self.name}.{key}: must be {_JSON_TYPES[self.item][1]}, got {item!r}"
            for key, item in items
            if not _is_instance(item, self.item)
        ]

    def _is_within(self, value: Any) -> bool:
        limits = self.limits
        return (
            ("enum" not in limits or value in limits["enum"] or value == self.default)
            and ("minimum" not in limits or value >= limits["minimum"])
            and ("maximum" not in limits or value <= limits["maximum"])
            and ("exclusiveMinimum" not in limits or value > limits["exclusiveMinimum"])
            and ("exclusiveMaximum" not in limits or value < limits["exclusiveMaximum"])
            and ("pattern" not in limits or re.search(limits["pattern"], value) is not None)
        )

    def _describe(self) -> str:
        if "enum" in self.limits:
            return f"one of {', '.join(map(str, self.limits['enum']))}"
        signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
        bounds = " and ".join(f"{sign} {self.limits[word]}" for word, sign in signs.items() if word in self.limits)
        pattern = f" that matches {self.limits['pattern']}" if "pattern" in self.limits else ""
        kind = _JSON_TYPES.get(self.kind, ("", "a value"))[1]
        return f"{kind} {bounds}".rstrip() + pattern


def list_options(declaration: type[Any]) -> tuple[Option, ...]:
    """Return the fields of a declaration in their order.

    Raises:
        TypeError: A field has no description.
    """
    descriptions = read_descriptions(declaration)
    listed = []
    for field in dataclasses.fields(declaration):
        if field.name not in descriptions:
            raise TypeError(f"{declaration.__name__}.{field.name}: has no line under Args in the docstring")
        kind, item, is_optional = parse_type(resolve_type(field.type, get_module(declaration, field.name)))
        factory: Any = field.default_factory
        default = field.default if factory is _MISSING else factory()
        listed.append(Option(field.name, kind, item, is_optional, default, descriptions[field.name], field.metadata))
    return tuple(listed)


def read_descriptions(documented: Any) -> dict[str, str]:
    """Return the descriptions of arguments or attributes in a Google docstring, each on one line.

    Args:
        documented: A class, a function or the text of a docstring.
    """
    text = documented if isinstance(documented, str) else inspect.getdoc(documented) or ""
    sections = "".join(section[1] for section in _SECTION.finditer(text + "\n"))
    return {entry[1]: " ".join(entry[2].split()) for entry in _ENTRY.finditer(sections)}


def check_options(options: Any, *, subject: str = "") -> None:
    """Check the types and limits of all fields.

    Args:
        options: An instance of a declaration.
        subject: Name of the options for messages.

    Raises:
        ValidationError: The message names each field.
    """
    check_values(
        type(options),
        {field.name: getattr(options, field.name) for field in dataclasses.fields(options)},
        subject=subject,
    )


def check_values(
    declaration: type[Any],
    values: Mapping[str, Any],
    *,
    subject: str = "",
    names: Mapping[str, str] | None = None,
    is_unknown: Callable[[Any], bool] = lambda value: False,
) -> None:
    """Check types and limits of values by field.

    Args:
        declaration: The options class.
        values: Values by field.
        subject: Name of the call for messages.
        names: Argument names of the call by field, where they differ.
        is_unknown: Whether a value is known only later, such as a pipeline parameter; such values are not checked.

    Raises:
        ValidationError: The message names each argument.
    """
    declared = {entry.name: entry for entry in list_options(declaration)}
    errors = [f"{name}: unknown, must be one of {', '.join(declared)}" for name in values if name not in declared]
    errors += [
        re.sub(rf"^{name}\b", (names or {}).get(name, name), error)
        for name, value in values.items()
        if name in declared and not is_unknown(value)
        for error in declared[name].list_errors(_drop_unknown(value, is_unknown))
    ]
    if errors:
        raise ValidationError(errors, subject=subject)


def merge_values(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes: a mapping is merged, None is ignored, any other value replaces.

    Args:
        values: Values by field.
        changes: Other values by field.
    """
    merged = dict(values)
    for name, value in changes.items():
        if isinstance(value, Mapping):
            merged[name] = {**(values.get(name) or {}), **value}
        elif value is not None:
            merged[name] = value
    return merged


def from_literals(declaration: type[Options], arguments: Mapping[str, Any]) -> Options:
    """Return options with the arguments of a signature whose types have no None, such as a KFP component's.

    Args:
        declaration: The options class.
        arguments: Values by field; where the default is None, 0 or an empty text stands for it.
    """
    defaults = {entry.name: entry.literal_default for entry in list_options(declaration) if entry.default is None}
    return declaration(
        **{name: None if value == defaults.get(name, _MISSING) else value for name, value in arguments.items()}
    )


def to_text(value: Any) -> str:
    """Return a value as text, as command lines and environment variables have it.

    KFP turns the integer 5 into 5.0; this returns `5`. A boolean is `true` or `false`, a list or dict canonical JSON.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, (Mapping, list, tuple)):
        return to_canonical_json(value)
    return value if isinstance(value, str) else json.dumps(value)


def to_json(options: Any) -> str:
    """Return the fields that differ from their defaults as JSON with sorted keys."""
    values = {entry.name: (getattr(options, entry.name), entry.default) for entry in list_options(type(options))}
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return json.dumps(changed, sort_keys=True, default=_to_plain)


def from_json(declaration: type[Options], text: str, *, source: str, hint: str = "") -> Options:
    """Parse the output of `to_json`; the arguments are those of `parse_values`."""
    return declaration(**parse_values(declaration, text, source=source, hint=hint))


def parse_values(declaration: type[Any], text: str, *, source: str, hint: str = "") -> dict[str, Any]:
    """Parse values by field from JSON; an empty text is none.

    Args:
        declaration: The options class.
        text: A JSON object.
        source: Name of the text for messages, such as an environment variable.
        hint: Next step after an unknown field.

    Raises:
        UserError: The text is not a JSON object, or has an unknown field.
    """
    if not text:
        return {}
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise UserError(f"{source}: not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{source}: expected a JSON object, got {type(raw).__name__}")
    if unknown := sorted(set(raw) - {entry.name for entry in list_options(declaration)}):
        raise UserError(f"{source}: unknown field {unknown[0]!r}", hint=hint)
    return raw


def build_schema(declaration: type[Any]) -> dict[str, Any]:
    """Return the JSON schema of a declaration."""
    declared = list_options(declaration)
    schema = {
        "title": declaration.__name__,
        "type": "object",
        "properties": {entry.name: entry.schema for entry in declared},
        "additionalProperties": False,
    }
    required = [entry.name for entry in declared if entry.is_required]
    return {**schema, "required": required} if required else schema


def build_table(declaration: type[Any]) -> str:
    """Return a Markdown table of a declaration's fields."""
    rows = ["| option | type | default | |", "|---|---|---|---|"]
    for entry in list_options(declaration):
        kind = (
            " or ".join(f"`{choice}`" for choice in entry.limits["enum"])
            if "enum" in entry.limits
            else (_JSON_TYPES[entry.kind][0] if entry.kind in _JSON_TYPES else "any")
        )
        default = "" if entry.is_required or entry.default in (None, {}, (), []) else f"`{entry.default}`"
        description = entry.description.replace("|", "\\|")
        rows.append(f"| `{entry.name}` | {kind} | {default} | {description} |")
    return "\n".join(rows) + "\n"


def resolve_type(annotation: Any, module: str, *, include_extras: bool = False) -> Any:
    """Return the type of an annotation; Any for one with a name that only type checkers import.

    Args:
        annotation: A type or its text.
        module: Name of the module that it is in.
        include_extras: Whether `Annotated` is kept.
    """
    annotated = types.SimpleNamespace(__annotations__={"field": annotation})
    try:
        return typing.get_type_hints(annotated, vars(sys.modules[module]), include_extras=include_extras)["field"]
    except NameError:
        return Any


def parse_type(hint: Any) -> tuple[type[Any], type[Any], bool]:
    """Return kind, kind of the items and whether None is allowed, see `Option`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        others = [entry for entry in arguments if entry is not types.NoneType]
        kind, item, _ = parse_type(others[0]) if len(others) == 1 else (object, object, False)
        return kind, item, len(others) < len(arguments)
    if hint is Any:
        return object, object, True
    plain = origin or hint
    if isinstance(plain, type) and not issubclass(plain, (str, bytes)):
        if issubclass(plain, Mapping):
            return dict, parse_type(arguments[1])[0] if arguments else object, False
        if issubclass(plain, Sequence):
            return list, parse_type(arguments[0])[0] if arguments else object, False
        if issubclass(plain, Path):
            return str, object, False
    return (plain if plain in _JSON_TYPES else object), object, False


def get_module(declaration: type[Any], name: str) -> str:
    """Return the module of the class that declares a field."""
    return next(kind.__module__ for kind in declaration.__mro__ if name in inspect.get_annotations(kind))


def _is_instance(value: Any, kind: type[Any]) -> bool:
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is str:
        return isinstance(value, (str, Path))
    if kind is list:
        return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return isinstance(value, Mapping if kind is dict else kind)


def _drop_unknown(value: Any, is_unknown: Callable[[Any], bool]) -> Any:
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if not is_unknown(item)}
    if isinstance(value, (list, tuple)):
        return [item for item in value if not is_unknown(item)]
    return value


def _build_type(kind: type[Any]) -> dict[str, Any]:
    return {"type": _JSON_TYPES[kind][0]} if kind in _JSON_TYPES else {}


def _to_plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else dict(value)
