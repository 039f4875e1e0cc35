"""Makes the command that runs a Python function as a job's process, as TrainingClient's `train_func` does."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from kfp_mindspore.errors import UserError


def build_function_command(
    function: Callable[..., Any],
    parameters: dict[str, Any] | None = None,
    *,
    packages_to_install: Sequence[str] = (),
    pip_index_url: str | None = None,
) -> list[str]:
    """Return the command that defines a function and calls it.

    Only the function's own source travels: what it needs it imports itself.

    Args:
        function: A function without or with one argument, which gets `parameters`. Decorators are left out.
        parameters: Handed to the function; None calls it without an argument.
        packages_to_install: Installed by pip before the call.
        pip_index_url: Where pip takes them from; default pip's own configuration.

    Raises:
        UserError: Its source cannot be found, or it is a lambda or closure.
    """
    if not callable(function):
        raise UserError(f"train_func: must be a function, got {function!r}")
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise UserError(f"train_func: must be a function with a name of its own, got {name or function!r}")
    if names := getattr(getattr(function, "__code__", None), "co_freevars", ()):
        raise UserError(
            f"train_func: {name} uses {', '.join(names)} of the function around it, which does not travel",
            hint="Hand it over in parameters.",
        )
    try:
        lines = inspect.getsource(function)
    except (OSError, TypeError):
        raise UserError(
            f"train_func: the source of {name} cannot be found",
            hint="Define it in a file or a notebook's cell.",
        ) from None
    source = textwrap.dedent(lines)
    # Decorators belong to the place where it was defined.
    source = source[source.index(f"def {name}") :]
    call = f"{name}({parameters!r})" if parameters is not None else f"{name}()"
    program = f"{source.rstrip()}\n\n{call}\n"
    if packages_to_install:
        index = ["-i", pip_index_url] if pip_index_url else []
        command = ["-m", "pip", "install", "--quiet", *index, *packages_to_install]
        program = f"import subprocess, sys\nsubprocess.run([sys.executable, *{command!r}], check=True)\n{program}"
    # Annotations may name what only the function's module imports.
    program = f"from __future__ import annotations\n\n{program}"
    # Kubernetes reads `$(NAME)` in a command as a variable; doubled, a dollar sign is one.
    return ["python", "-u", "-c", program.replace("$", "$$")]
