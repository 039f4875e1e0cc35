"""A function, a class or a script as a build context: its module and the modules of the project that it imports."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images.context import BuildContext
from kfp_mindspore.images.folder import make_entry
from kfp_mindspore.images.local_imports import Closure, trace_module, trace_source

_DYNAMIC = "what is imported by a name that is only known when it runs is not found: use a folder for that"


def collect_function(function: Callable[..., Any], *, command: Sequence[str] = ()) -> BuildContext:
    """Return the module of a function or class, and those of its project that it imports.

    Args:
        function: A function or class at the top of a module in a file.
        command: How it is run; by default it is called without arguments, when it needs none.

    Raises:
        UserError: It is no function or class at the top of a module, or its module is in no file, such as one that was
            typed into a notebook.
    """
    name = getattr(function, "__qualname__", "")
    if not name or not (inspect.isfunction(function) or inspect.isclass(function)):
        raise UserError(f"function: must be a function or a class, got {function!r}")
    if "." in name or name == "<lambda>":
        raise UserError(f"function: {name} must stand at the top of a module", hint="Move it to the top of a file.")
    try:
        file = Path(inspect.getsourcefile(function) or "").resolve()
    except TypeError:
        file = Path()
    if not file.is_file():
        raise UserError(
            f"function: {name} is in no file", hint="Put it in a file, or build from the notebook that defines it."
        )
    module, root = _place(function.__module__, file)
    closure = trace_module(module, root)
    if not command and not _needs_arguments(function):
        command = ("python3", "-c", f"from {module} import {name}; {name}()")
    return _make_context(
        closure, root, f"{'class' if inspect.isclass(function) else 'function'} {module}.{name}", command
    )


def collect_script(script: Path | str, *, command: Sequence[str] = ()) -> BuildContext:
    """Return a Python script and the modules beside it that it imports.

    Args:
        script: The file.
        command: How it is run; `python3 <its name>` by default.

    Raises:
        NotFoundError: There is no such file.
        UserError: It is no Python.
    """
    file = Path(script)
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file")
    root = file.resolve().parent
    closure = trace_source(file.read_text(encoding="utf-8"), root, name=str(file))
    closure.files[file.name] = file.stem
    return _make_context(closure, root, f"script {file}", command or ("python3", file.name))


def _make_context(closure: Closure, root: Path, origin: str, command: Sequence[str]) -> BuildContext:
    entries = [make_entry(root, path) for path in closure.files]
    return BuildContext(entries, origin=origin, command=command, notes=[*closure.describe(), _DYNAMIC])


def _place(module: str, file: Path) -> tuple[str, Path]:
    """Return a module's name as the image imports it, and the folder that imports start from."""
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec.name if spec is not None else file.stem
    depth = module.count(".") + (1 if file.name == "__init__.py" else 0)
    return module, file.parents[depth]


def _needs_arguments(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return True
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(parameter.default is parameter.empty and parameter.kind not in kinds for parameter in parameters)
