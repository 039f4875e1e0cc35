"""Comparison of literal signatures with the declaration of their options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from kfp_mindspore.cli.main import cli
from kfp_mindspore.options import Option, list_options, parse_type, read_descriptions, resolve_type

# What a default is compared with: a component has no None, a setter leaves a field unchanged by None.
COMPONENT, SETTER, CLIENT = "component", "setter", "client"


@dataclass(frozen=True)
class Signature:
    """A function whose arguments must match a declaration.

    Args:
        declaration: The options class.
        function: A function, or a KFP component.
        form: `COMPONENT`, `SETTER` or `CLIENT`.
        names: Argument by field, where they differ.
        only: Fields with an argument; empty for all.
        without: Fields without one, with the reason.
    """

    declaration: type[Any]
    function: Any
    form: str
    names: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the function."""
        return str(self.python_function.__qualname__)

    @property
    def python_function(self) -> Callable[..., Any]:
        """The function of a component, too."""
        return getattr(self.function, "python_func", self.function)  # type: ignore[no-any-return]

    def list_differences(self) -> list[str]:
        """Return one sentence for each difference, with the place and both forms."""
        return [f"{self.name}: {difference}" for difference in self._list_differences()]

    def _list_differences(self) -> Iterator[str]:
        declared = {entry.name: entry for entry in list_options(self.declaration)}
        for name in (*self.only, *self.without, *self.names):
            if name not in declared:
                yield f"{name}: is no field of {self.declaration.__name__}"
        parameters = inspect.signature(self.python_function).parameters
        described = read_descriptions(self.python_function)
        for name, entry in declared.items():
            argument = self.names.get(name, name)
            if name in self.without or (self.only and name not in self.only):
                continue
            if argument not in parameters:
                yield f"{argument}: is no argument; {self.declaration.__name__}.{name} is {entry.kind.__name__}"
                continue
            hint = resolve_type(parameters[argument].annotation, self.python_function.__module__)
            default = parameters[argument].default
            yield from (f"{argument}: {text}" for text in self._compare(entry, hint, default))
            expected, found = entry.summary, described.get(argument, "")
            if not found.startswith(expected):
                yield f"{argument}: is described as {found!r}, expected {expected!r} and further words if any"

    def _is_compatible(self, entry: Option, kind: type[Any], item: type[Any]) -> bool:
        # A component has one type where a field has several, and may lack the types of items; a client accepts more.
        if self.form == COMPONENT:
            return entry.kind is object or (item is object and kind is entry.kind)
        if self.form == CLIENT and kind is object:
            return True
        return item is object and kind is entry.kind is dict

    def _compare(self, entry: Option, hint: Any, default: Any) -> Iterator[str]:
        kind, item, _ = parse_type(hint)
        if (kind, item) != (entry.kind, entry.item) and not self._is_compatible(entry, kind, item):
            yield f"has the type {hint}, expected {entry.kind.__name__} of {entry.item.__name__}"
        expected = inspect.Parameter.empty if entry.is_required else entry.default
        if self.form == COMPONENT and not entry.is_required:
            expected = entry.literal_default
            if entry.kind is object and entry.default is None:
                # The empty value of the argument's type stands for None.
                expected = type(default)()
        # A setter of one option has no default; a client leaves the default by None.
        allowed = {SETTER: (None, inspect.Parameter.empty), CLIENT: (expected, None)}.get(self.form, (expected,))
        if not any(default is item or default == item for item in allowed):
            yield f"has the default {default!r}, expected {expected!r}"


@dataclass(frozen=True)
class CommandOptions:
    """Hand-written options of a command that must match a declaration: defaults, bounds and choices.

    Args:
        declaration: The options class.
        path: The command: `image build`.
        fields: Fields with an option.
        names: Parameter by field, where they differ.
    """

    declaration: type[Any]
    path: str
    fields: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)

    def list_differences(self) -> list[str]:
        """Return one sentence for each difference, with the option and both forms."""
        command: click.Command = cli
        for word in self.path.split():
            assert isinstance(command, click.Group)
            child = command.get_command(click.Context(command), word)
            assert child is not None
            command = child
        parameters = {parameter.name: parameter for parameter in command.params}
        declared = {entry.name: entry for entry in list_options(self.declaration)}
        return [
            f"{self.path}: {parameter.opts[0]}: {difference}"
            for name in self.fields
            for parameter in [parameters[self.names.get(name, name)]]
            for difference in _compare_parameter(declared[name], command, parameter)
        ]


def _compare_parameter(entry: Option, command: click.Command, parameter: click.Parameter) -> Iterator[str]:
    kind = parameter.type
    found = {
        "minimum": getattr(kind, "min", None),
        "maximum": getattr(kind, "max", None),
        "enum": tuple(getattr(kind, "choices", ())) or None,
        "required": parameter.required,
        "multiple": parameter.multiple,
    }
    expected = {
        **{word: entry.limits.get(word) for word in ("minimum", "maximum", "enum")},
        "required": entry.is_required,
        "multiple": entry.is_repeatable,
    }
    yield from (
        f"has {word} {found[word]}, expected {expected[word]}" for word in found if found[word] != expected[word]
    )
    # An option that is passed on only if it was given states the default in its help.
    stated = re.search(r"\[default: (.*)\]", getattr(parameter, "help", None) or "")
    default = stated[1] if stated else str(parameter.get_default(click.Context(command)))
    if not (entry.is_required or entry.is_repeatable) and default != str(entry.default):
        yield f"has the default {default}, expected {entry.default}"
