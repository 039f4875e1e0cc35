"""The extra that installs a missing module, by this package's own metadata."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from types import TracebackType

from kfp_mindspore.errors import MissingExtraError

_PACKAGE = "kfp-mindspore"
# Modules that do not have their distribution's name.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "google": "protobuf",
    "grpc": "grpcio",
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-api",
    "sklearn": "scikit-learn",
}
# Extras made of others, and those of contributors.
_COLLECTIONS = ("all", "dev", "docs", "notebook")
_NO_MODULE = re.compile(r"No module named '?(\w+)")
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+).*;.*extra == ['\"]([\w-]+)['\"]")


def explain_missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error that names the extra which installs a missing module; None for a module of no extra.

    Args:
        error: The error. Of several extras the one is named whose package has imported the module.
    """
    module = (error.name or "").partition(".")[0]
    extras = list_extras(module)
    if not extras:
        return None
    own = next((name for name in reversed(list(_list_packages(error.__traceback__))) if name in extras), extras[0])
    return MissingExtraError(module, own)


def list_missing_modules(message: str) -> set[str]:
    """Return the modules, at the top level, that a failed process lacks.

    Args:
        message: The process's last lines: python has no exit code for a missing module.
    """
    return set(_NO_MODULE.findall(message))


def list_extras(module: str) -> list[str]:
    """Return the extras that install a module, in pyproject's order.

    Args:
        module: The module's top-level name.
    """
    try:
        requirements = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    wanted = _normalize(_DISTRIBUTIONS.get(module, module))
    found = [match for match in map(_REQUIREMENT.fullmatch, requirements) if match and _normalize(match[1]) == wanted]
    return [match[2] for match in found if match[2] not in _COLLECTIONS and wanted != _PACKAGE]


def _list_packages(trace: TracebackType | None) -> Iterable[str]:
    """Yield the names of this package's parts by which the traceback goes, such as `lm`."""
    while trace is not None:
        parts = str(trace.tb_frame.f_globals.get("__name__", "")).split(".")
        yield from parts[1:2]
        trace = trace.tb_next


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
