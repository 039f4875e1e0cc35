"""Networks: imported as `module:factory`, built, and loaded from a checkpoint."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import COMPILER_DUMP_VARIABLE

if TYPE_CHECKING:
    from mindspore import nn


def build_network(factory: str, arguments: Mapping[str, Any]) -> nn.Cell:
    """Import a factory and call it with arguments.

    Args:
        factory: `module:callable`; modules in the working directory are importable too.
        arguments: The callable's keyword arguments.

    Raises:
        UserError: There is no such module or callable, or it does not return a Cell; the message names it.
    """
    from mindspore import nn

    function = import_callable(factory, "network")
    try:
        network = function(**arguments)
    except TypeError as error:
        raise UserError(f"network {factory!r} cannot be built with arguments {dict(arguments)}: {error}") from error
    if not isinstance(network, nn.Cell):
        raise UserError(f"network {factory!r}: must return a mindspore.nn.Cell, got {type(network).__name__}")
    return network


def import_callable(reference: str, subject: str) -> Callable[..., Any]:
    """Import a callable.

    Args:
        reference: `module:callable`; modules in the working directory are importable too.
        subject: What it is, for messages.

    Raises:
        UserError: There is no such module or callable.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise UserError(f"{subject}: must be 'module:callable', got {reference!r}")
    function = getattr(_import_module(module_name, subject), name, None)
    if not callable(function):
        raise UserError(f"{subject} {reference!r}: {module_name} has no callable {name!r}")
    return cast(Callable[..., Any], function)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a temporary directory, which is the compiler's dump directory too.

    Its path has no characters that MindSpore rejects in file names.
    """
    chosen = os.environ.get(COMPILER_DUMP_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-") as name:
        os.environ[COMPILER_DUMP_VARIABLE] = chosen or name
        try:
            yield Path(name)
        finally:
            if chosen is None:
                del os.environ[COMPILER_DUMP_VARIABLE]


def _import_module(name: str, subject: str) -> Any:
    # A console script's sys.path lacks the working directory, unlike with `python -m`.
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"{subject}: no module {error.name!r} in {here} or among the installed packages",
            hint="Run it from the folder that holds the module, or install the package.",
        ) from None
    finally:
        if added:
            sys.path.remove(here)
