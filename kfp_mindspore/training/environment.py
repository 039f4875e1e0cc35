"""What has to hold around training: a quiet MindSpore, GRAPH mode, fixed seeds."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.settings import COMPILER_DUMP_VARIABLE, LOG_LEVEL_VARIABLE


def quieten() -> None:
    """Let MindSpore log errors only, and put what a failed compile dumps into the temporary directory.

    Both are environment variables that MindSpore reads when it is imported, and both keep what the user has set.
    """
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "3")
    os.environ.setdefault(COMPILER_DUMP_VARIABLE, str(Path(tempfile.gettempdir(), f"kfp-mindspore-om-{os.getuid()}")))


def import_mindspore() -> Any:
    """Return the module `mindspore`.

    Raises:
        MissingExtraError: It is not installed.
    """
    quieten()
    try:
        import mindspore
    except ImportError as error:
        if error.name != "mindspore":
            raise
        raise MissingExtraError("mindspore", "train") from None
    return mindspore


def set_seed(seed: int) -> None:
    """Fix the seeds of Python's `random`, NumPy and MindSpore; call it before the network is built.

    Args:
        seed: 0 to 2³² - 1.
    """
    import random

    random.seed(seed)
    import_mindspore().set_seed(seed)


@contextlib.contextmanager
def use_graph_mode() -> Iterator[None]:
    """Run the block in MindSpore's GRAPH mode and go back to the mode before."""
    mindspore = import_mindspore()
    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=before)
