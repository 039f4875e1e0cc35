"""Importing kfp 2.17 without the API client.

`import kfp` imports `kfp.client` and with it the kubernetes and kfp_server_api packages: 1.1 s out of 1.4 s import
time, in every local run. With `_KFP_RUNTIME=true`, which KFP's executor sets in a step, kfp skips the subpackages; here
they are imported on first use instead.

kfp.Client imports IPython, 1 s, before each upload and run, to find out whether it is in a notebook.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.settings import KFP_RUNTIME_VARIABLE

_LAZY = {"Client": "kfp.client", "client": "kfp.client", "components": "kfp.components", "dsl": "kfp.dsl"}


def attach_stub(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package with a stub file, whose modules import kfp.

    A missing kfp is raised as MissingExtraError, which is also an ImportError.

    Args:
        name: The package's `__name__`.
        file: The package's `__file__`.
    """
    import lazy_loader

    get_lazily, list_names, names = lazy_loader.attach_stub(name, file)

    def get_attribute(attribute: str) -> Any:
        try:
            return get_lazily(attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "kfp":
                raise
            raise MissingExtraError("kfp", "pipelines") from None

    return get_attribute, list_names, names


def import_kfp() -> None:
    """Import kfp with the subpackages loaded on first use; does nothing if kfp is already imported.

    Raises:
        MissingExtraError: kfp is not installed.
    """
    if "kfp" in sys.modules:
        return
    previous = os.environ.get(KFP_RUNTIME_VARIABLE)
    os.environ[KFP_RUNTIME_VARIABLE] = "true"
    try:
        kfp = importlib.import_module("kfp")
    except ModuleNotFoundError as error:
        if error.name != "kfp":
            raise
        raise MissingExtraError("kfp", "pipelines") from None
    finally:
        # kfp.dsl leaves out its compile-time names while the variable is set, and steps inherit the environment.
        if previous is None:
            del os.environ[KFP_RUNTIME_VARIABLE]
        else:
            os.environ[KFP_RUNTIME_VARIABLE] = previous

    def get_attribute(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'kfp' has no attribute {name!r}")
        module = importlib.import_module(_LAZY[name])
        return module.Client if name == "Client" else module

    vars(kfp).setdefault("__getattr__", get_attribute)


@contextlib.contextmanager
def skip_ipython() -> Iterator[None]:
    """Make kfp.Client treat this process as no notebook in the block, unless IPython is already imported."""
    if "IPython" in sys.modules:
        yield
        return
    # None makes an import raise ImportError.
    sys.modules["IPython"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["IPython"]
