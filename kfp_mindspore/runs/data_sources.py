"""URIs that a compiled pipeline's data steps read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.runs.known_tasks import list_known_tasks

# What the component load_dataset calls.
_FUNCTION = "prepare_dataset"
_PARAMETERS = ("name", "validation", "test")


def list_sources(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the URIs that `load_dataset` steps read, each once; without URIs computed in the run.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name; defaults are added.
    """
    return list(dict.fromkeys(_iterate_uris(spec, arguments)))


def _iterate_uris(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    for task in list_known_tasks(spec, arguments):
        if _FUNCTION in task.functions:
            values = (task.arguments.get(name) for name in _PARAMETERS)
            yield from (value for value in values if isinstance(value, str) and "://" in value)
