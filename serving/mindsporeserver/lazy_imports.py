"""Imports only the part of kserve that a server needs: 1.2 s instead of 4 s.

`import kserve` also imports its client for Kubernetes (with the kubernetes library and 250 models) and pandas (for
`as_dataframe`, which nothing here calls). Within `light_imports`, `kserve` is a package whose `__init__` runs on the
first use of something that only it defines, and pandas is a stand-in that turns into the real one when it is used.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """Import kserve's server modules in this block; a no-op for what was imported before."""
    spec = importlib.util.find_spec("kserve") if "kserve" not in sys.modules else None
    if spec is not None:
        sys.modules["kserve"] = _LazyPackage(spec)
    pandas = _PandasStandIn("pandas") if "pandas" not in sys.modules else None
    if pandas is not None:
        sys.modules["pandas"] = pandas
    try:
        yield
    finally:
        # Whoever imports pandas from now on gets pandas; only the modules imported here hold the stand-in.
        if pandas is not None and sys.modules.get("pandas") is pandas:
            del sys.modules["pandas"]


def settle_temporary_directory() -> None:
    """Let the server start where no temporary directory can be written: a read-only root without a volume at /tmp.

    A library that MindSpore imports asks for its name at import, and fails when none of the usual ones can be written.
    Nothing is written there; who wants to write, such as the metrics of several workers, says so itself.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        tempfile.tempdir = "/tmp"


class _LazyPackage(ModuleType):
    """A package whose submodules can be imported before its `__init__` runs."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__path__ = list(spec.submodule_search_locations or ())
        self.__file__ = spec.origin
        self.__package__ = spec.name
        self._whole = False

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        # A submodule is what the import system asks for before it imports one.
        submodule = not name.startswith("__") and importlib.util.find_spec(f"{self.__name__}.{name}") is not None
        if self._whole or submodule or name.startswith("__") or spec is None or spec.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._whole = True
        spec.loader.exec_module(self)
        return getattr(self, name)


class _FrameType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        real = sys.modules.get("pandas")
        return real is not None and isinstance(instance, real.DataFrame)

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return importlib.import_module("pandas").DataFrame(*arguments, **options)


class _Frame(metaclass=_FrameType):
    """Stands for pandas.DataFrame in annotations and isinstance."""


class _PandasStandIn(ModuleType):
    DataFrame = _Frame

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get("pandas") is self:
            del sys.modules["pandas"]
        return getattr(importlib.import_module("pandas"), name)
