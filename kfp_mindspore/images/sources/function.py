"""A function, a class or a script as a build context: its module and the local modules that it imports."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.folder import make_entry
from kfp_mindspore.images.sources.local_imports import LocalImports, resolve_module_imports, resolve_source_imports

_DYNAMIC = "dynamic imports are not resolved: build from the folder if there are any"


def collect_function(function: Callable[..., Any], *, command: Sequence[str] = ()) -> BuildContext:
    """Return a function's or class's module and the local modules that it imports.

    Args:
        function: A function or class at a module's top in a file.
        command: Command that runs it; default: a call without arguments, when it needs none.

    Raises:
        UserError: It is not a function or class at a module's top, or is not defined in a file, such as in a notebook.
    """
    name = getattr(function, "__qualname__", "")
    if not name or not (inspect.isfunction(function) or inspect.isclass(function)):
        raise UserError(f"function: must be a function or a class, got {function!r}")
    if "." in name or name == "<lambda>":
        raise UserError(f"function: {name} must be at the top of a module", hint="Move it to the top of a file.")
    try:
        file = Path(inspect.getsourcefile(function) or "").resolve()
    except TypeError:
        file = Path()
    if not file.is_file():
        raise UserError(
            f"function: {name} is not defined in a file",
            hint="Move it to a file, or build from its notebook.",
        )
    module, root = _locate_module(function.__module__, file)
    imports = resolve_module_imports(module, root)
    if not command and not _needs_arguments(function):
        command = ("python3", "-c", f"from {module} import {name}; {name}()")
    return _make_context(imports, root, command)


def collect_script(script: Path | str, *, command: Sequence[str] = ()) -> BuildContext:
    """Return a Python script and the local modules that it imports.

    Args:
        script: The file.
        command: Command that runs it; default: `python3 <its name>`.

    Raises:
        NotFoundError: There is no such file.
        UserError: It is not Python.
    """
    file = Path(script)
    if not file.is_file():
        raise NotFoundError(f"{file}: no such file")
    root = file.resolve().parent
    imports = resolve_source_imports(file.read_text(encoding="utf-8"), root, name=str(file))
    imports.files[file.name] = file.stem
    return _make_context(imports, root, command or ("python3", file.name))


def _make_context(imports: LocalImports, root: Path, command: Sequence[str]) -> BuildContext:
    entries = [make_entry(root, path) for path in imports.files]
    return BuildContext(entries, command=command, notes=[*imports.describe(), _DYNAMIC])


def _locate_module(module: str, file: Path) -> tuple[str, Path]:
    """Return the name by which the image imports a module, and the folder that it is imported from."""
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
