"""Flags on the current command's command line."""

from __future__ import annotations

from collections.abc import Collection

import click


def list_given(parameters: Collection[str]) -> list[str]:
    """Return the current command's flags that were given on its command line, among these parameters.

    Args:
        parameters: Parameter names in the command's function.
    """
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
