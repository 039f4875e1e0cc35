"""Command-line options derived from an options dataclass."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from kfp_mindspore.cli.shared.output import PairType
from kfp_mindspore.options import Option, list_options

Command = TypeVar("Command", bound=Callable[..., Any])

_TYPES: Mapping[type[Any], click.ParamType] = {bool: click.BOOL, int: click.INT, float: click.FLOAT}  # type: ignore[type-arg,unused-ignore]


def dataclass_options(
    declaration: type[Any],
    *,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    types: Mapping[str, click.ParamType] | None = None,  # type: ignore[type-arg,unused-ignore]
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    once: Collection[str] = (),
    into: str = "options",
    is_complete: bool = True,
) -> Callable[[Command], Command]:
    """Return a decorator that adds an option for each field; the command gets an instance of the dataclass.

    Types, limits, defaults and help are the declaration's: help is the first sentence, with a note in brackets behind
    it such as [env: KFP_TOKEN]. A list or a dict of strings is repeatable; another dict is JSON.

    Args:
        declaration: The dataclass, see `kfp_mindspore.options`.
        only: Fields with an option; default all.
        without: Fields without one; in the instance they have their defaults.
        names: Option by field, where it is not the field's name with dashes: {"env_vars": "--env"}; with a short form
            "-n --namespace".
        types: Parameter types by field, such as `click.Path()`.
        settings: Further `click.option` keywords by field: {"token": {"envvar": "KFP_TOKEN"}}.
        once: Lists given by one option, whose type in `types` returns a list.
        into: The command's argument name.
        is_complete: Whether the fields are all that the dataclass requires; else the command gets them as a dict.
    """
    declared = [entry for entry in list_options(declaration) if only is None or entry.name in only]
    declared = [entry for entry in declared if entry.name not in without]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*arguments: object, **values: object) -> Any:
            given = {entry.name: _to_field(entry, values.pop(entry.name), entry.name in once) for entry in declared}
            return command(*arguments, **values, **{into: declaration(**given) if is_complete else given})

        added: Any = wrapped
        for entry in reversed(declared):
            flag = (names or {}).get(entry.name) or "--" + entry.name.replace("_", "-")
            kind, further = (types or {}).get(entry.name), (settings or {}).get(entry.name, {})
            added = _build_option(entry, flag, kind, entry.name in once, further)(added)
        return added  # type: ignore[no-any-return]

    return decorate


def _build_option(
    entry: Option, flag: str, kind: Any, is_once: bool, further: Mapping[str, Any]
) -> Callable[[Any], Any]:
    is_repeatable = entry.is_repeatable and not is_once
    note = re.match(r"\.( \[[^]]+\])", entry.description.removeprefix(entry.summary))
    end = ("; repeatable." if is_repeatable else ".") + (note[1] if note else "")
    settings: dict[str, Any] = {"help": entry.summary.replace("`", "") + end, "required": entry.is_required}
    if entry.kind is bool and entry.default is False:
        return click.option(flag, entry.name, is_flag=True, help=settings["help"])
    if entry.kind is bool:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    if is_repeatable:
        settings["multiple"] = True
    elif not entry.is_required and entry.default not in (None, ""):
        settings |= {"default": entry.default, "show_default": True}
    return click.option(*flag.split(), entry.name, type=kind or _get_type(entry), **{**settings, **further})


def _get_type(entry: Option) -> click.ParamType:  # type: ignore[type-arg,unused-ignore]
    if "enum" in entry.limits:
        return click.Choice(entry.limits["enum"])
    if entry.kind is dict:
        return PairType() if entry.is_repeatable else _JsonType()
    kind = entry.item if entry.kind is list else entry.kind
    if kind is dict:
        return _JsonType()
    lowest = entry.limits.get("minimum", entry.limits.get("exclusiveMinimum"))
    highest = entry.limits.get("maximum", entry.limits.get("exclusiveMaximum"))
    if kind in (int, float) and (lowest, highest) != (None, None):
        is_open = {"min_open": "exclusiveMinimum" in entry.limits, "max_open": "exclusiveMaximum" in entry.limits}
        return (click.IntRange if kind is int else click.FloatRange)(lowest, highest, **is_open)
    return _TYPES.get(kind, click.STRING)


def _to_field(entry: Option, value: Any, is_once: bool) -> Any:
    if entry.is_repeatable and not is_once:
        if entry.kind is dict:
            return dict(value) or entry.default
        # A type may convert one value to a list.
        return (
            tuple(item for given in value for item in (given if isinstance(given, list) else [given])) or entry.default
        )
    return entry.default if value is None and not entry.is_required else value


class _JsonType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"must be JSON, got {value!r} ({error})", param, ctx)
