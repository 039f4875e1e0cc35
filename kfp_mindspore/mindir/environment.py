"""MindSpore's process-wide settings: log level, dump directory and execution mode."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.settings import COMPILER_DUMP_VARIABLE, LOG_LEVEL_VARIABLE, ROLE_VARIABLE

# MindSpore 2.9 errors for a network that cannot be compiled or computed.
NETWORK_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError)


def set_defaults() -> None:
    """Set the log level, and the temporary directory for dumps from failed compiles.

    Only one of several workers logs errors (3), such as lost connections. Elsewhere an exception has the error text,
    and its 30 log lines would precede the message (4). MindSpore reads both environment variables when it is imported.
    The user's values are kept.
    """
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "3" if os.environ.get(ROLE_VARIABLE) else "4")
    os.environ.setdefault(COMPILER_DUMP_VARIABLE, str(Path(tempfile.gettempdir(), f"kfp-mindspore-om-{os.getuid()}")))


def import_mindspore(extra: str = "train") -> Any:
    """Return the module `mindspore`.

    Args:
        extra: The extra to name when it is missing.

    Raises:
        MissingExtraError: It is not installed.
    """
    set_defaults()
    try:
        import mindspore
    except ModuleNotFoundError as error:
        if error.name != "mindspore":
            raise
        raise MissingExtraError("mindspore", extra) from None
    return mindspore


def name_versions(exporter: str) -> str:
    """Return the subject of an error about a model: MindSpore, or both versions where it is not the exporter's.

    Args:
        exporter: The version that exported the model.
    """
    installed = import_mindspore("serving").__version__
    if exporter == installed:
        return "MindSpore"
    return f"it was exported by MindSpore {exporter}, and MindSpore {installed}"


@contextlib.contextmanager
def use_graph_mode() -> Iterator[None]:
    """Run the block in MindSpore's GRAPH mode and restore the previous mode and syntax level.

    A failed `mindspore.export` leaves the level STRICT, with which a network returns a tuple for a dict.
    """
    mindspore = import_mindspore()
    before = {name: mindspore.get_context(name) for name in ("mode", "jit_syntax_level")}
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(**before)
