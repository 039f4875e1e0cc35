"""A command line's sources: a folder, a script, a notebook, or a function in a module."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.images.sources.context import BuildContext


def collect_source(
    source: str, *, command: Sequence[str] = (), tags: Sequence[str] = (), include: Sequence[str] = ()
) -> BuildContext:
    """Return the build context for a folder, `script.py`, `notebook.ipynb` or `package.module:function`.

    Args:
        source: As above; the working directory is on the module search path.
        command: Command that runs the sources; default: the sources' own.
        tags: For a notebook: cell tags to convert; default `image`.
        include: For a folder: `.dockerignore` patterns of likely secrets to include.

    Raises:
        NotFoundError: There is no such file, module or function.
        UserError: It has another form, or is invalid.
    """
    path = Path(source)
    if path.is_dir():
        from kfp_mindspore.images.sources.folder import collect_folder

        return collect_folder(path, command=command, include=include)
    if path.suffix == ".ipynb":
        from kfp_mindspore.images.sources.notebook import DEFAULT_TAG, convert_notebook

        return convert_notebook(path, tags=tuple(tags) or (DEFAULT_TAG,))
    if path.suffix == ".py":
        from kfp_mindspore.images.sources.function import collect_script

        return collect_script(path, command=command)
    if ":" in source and os.sep not in source:
        from kfp_mindspore.images.sources.function import collect_function

        return collect_function(_import(source), command=command)
    if path.exists():
        raise UserError(f"{source}: must be a folder, a .py script, a .ipynb notebook or MODULE:FUNCTION")
    raise NotFoundError(
        f"{source}: no such folder, script or notebook", hint="Run it in the folder that holds it, or give a path."
    )


def _import(source: str) -> Callable[..., Any]:
    module_name, _, name = source.partition(":")
    if not name or not module_name.split(".")[0]:
        raise UserError(f"{source!r}: names no {'function' if module_name else 'module'}, expected MODULE:FUNCTION")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise NotFoundError(f"{source}: no module {error.name!r}") from None
    finally:
        sys.path.pop(0)
    found = getattr(module, name, None)
    if not callable(found):
        raise NotFoundError(f"{source}: module {module_name} has no function or class {name!r}")
    made: Callable[..., Any] = found
    return made
