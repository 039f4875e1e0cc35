"""The classes for all commands and groups below `kfp-mindspore`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from kfp_mindspore.cli.shared.output import PairType


class StrictCommand(click.Command):
    """A command that refuses a repeated single-value option, and a repeated key in `KEY=VALUE` options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments.

        Raises:
            click.UsageError: A single-value option or a key is repeated; click would keep the last value.
        """
        if not ctx.resilient_parsing:
            values, _, order = self.make_parser(ctx).parse_args(list(args))
            for name, count in Counter(_list_single_values(values, order)).items():
                if count > 1:
                    raise click.UsageError(f"{name}: given {count} times, expected once", ctx)
        return super().parse_args(ctx, args)


class StrictGroup(click.Group):
    """A group with such commands."""

    command_class = StrictCommand


def _list_single_values(values: Mapping[str, Any], order: Sequence[click.Parameter]) -> Iterator[str]:
    """Yield each given single-value option, and each given key in the other options, as often as given."""
    for parameter in order:
        if isinstance(parameter, click.Option) and not parameter.multiple and not parameter.is_flag:
            yield " / ".join(parameter.opts)
    for parameter in dict.fromkeys(order):
        if isinstance(parameter.type, PairType) and parameter.type.has_unique_keys:
            for pair in values[str(parameter.name)]:
                yield f"{parameter.opts[0]} {str(pair).partition('=')[0].strip()}"
