"""Output and options shared by the commands: tables, manifests, and one JSON object on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class PairType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A parameter type `KEY=VALUE`, converted to a string pair.

    Args:
        has_unique_keys: Whether a repeated key is refused.
    """

    name = "KEY=VALUE"

    def __init__(self, *, has_unique_keys: bool = True) -> None:
        self.has_unique_keys = has_unique_keys

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"must be KEY=VALUE, got {value!r}", param, ctx)
        return key.strip(), text


class OutputPath(click.Path):  # type: ignore[type-arg,unused-ignore]
    """The type of each parameter that names an output; the functions check what it may replace.

    Args:
        or_uri: Whether a URI is accepted too; the parameter is then a string, whose `//` a `Path` would lose.
    """

    def __init__(self, *, or_uri: bool = False) -> None:
        super().__init__(path_type=str if or_uri else Path)


def add_json_option(command: Command) -> Command:
    """Add the option `--json`, passed as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(command)


def print_json(value: Mapping[str, Any]) -> None:
    """Print an object as one JSON line."""
    click.echo(json.dumps(value, sort_keys=True))


def print_json_list(items: Sequence[Mapping[str, Any]]) -> None:
    """Print a list as one JSON line, `{"items": […]}`, every list's shape."""
    print_json({"items": items})


def dump_manifest(manifest: Mapping[str, Any]) -> str:
    """Return a Kubernetes manifest as YAML, without sorting its fields."""
    import yaml

    return yaml.safe_dump(dict(manifest), sort_keys=False, width=120)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table with upper-case headings, like kubectl."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*("" if row.get(column) is None else str(row.get(column)) for column in columns))
    # Wider than any terminal, so that no name is truncated.
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False, width=4096)
    with console.capture() as capture:
        console.print(table)
    # rich pads the last column, and long padding wraps in a terminal.
    for line in capture.get().splitlines():
        click.echo(line.rstrip())
