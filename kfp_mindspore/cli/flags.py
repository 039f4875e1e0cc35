"""Flags on the command line of the current command."""

from __future__ import annotations

from collections.abc import Collection

import click


def list_given(parameters: Collection[str]) -> list[str]:
    """Return the flags of the current command that were given on its command line, out of these parameters.

    Args:
        parameters: Names of parameters of the command's function.
    """
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
