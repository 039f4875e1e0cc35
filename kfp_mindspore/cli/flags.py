"""Which flags the present command was given."""

from __future__ import annotations

from collections.abc import Collection

import click


def list_given(parameters: Collection[str]) -> list[str]:
    """Return the flags, of these parameters of the present command, that stand on its command line.

    Args:
        parameters: Names of parameters, as the command's function has them.
    """
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name) is click.core.ParameterSource.COMMANDLINE
    ]
