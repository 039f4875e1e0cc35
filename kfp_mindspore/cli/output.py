"""How every command prints: a table or text for people, one JSON object as the last line for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from kfp_mindspore.settings import BACKEND_VARIABLE, KUBERNETES, LOCAL

Command = TypeVar("Command", bound=Callable[..., Any])


class PairType(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """`KEY=VALUE`, converted to the pair; the value stays text."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return key and value."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key.strip():
            self.fail(f"must be KEY=VALUE, got {value!r}", param, ctx)
        return key.strip(), text


def add_json_option(command: Command) -> Command:
    """Add `--json`, passed to the command as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")(command)


def add_backend_option(command: Command) -> Command:
    """Add `--backend`, passed to the command as `backend`: `local`, `kubernetes` or, when absent, None."""
    return click.option(
        "--backend",
        type=click.Choice([LOCAL, KUBERNETES]),
        envvar=BACKEND_VARIABLE,
        help="Where it runs. [default: local on a machine, kubernetes in a pod]",
    )(command)


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON."""
    click.echo(json.dumps(value, sort_keys=True))


def dump_manifest(manifest: Mapping[str, Any]) -> str:
    """Return a Kubernetes manifest as YAML, its fields in the order given."""
    import yaml

    return yaml.safe_dump(dict(manifest), sort_keys=False, width=120)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows under upper-case headings, columns aligned, as kubectl does."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for column in columns:
        table.add_column(column.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*("" if row.get(column) is None else str(row.get(column)) for column in columns))
    # Wider than any terminal: a name that is cut short cannot be copied.
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False, width=4096).print(table)
