"""Sources that a compiled pipeline's data steps read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.runs.compiled.known_tasks import KnownTask, list_known_tasks

# What the component load_dataset calls.
_FUNCTION = "prepare_dataset"
# What the components of language models with the parameter `data` call.
_EXAMPLES = {"create_model", "finetune_model", "evaluate_examples"}
_PARAMETERS = ("name", "validation", "test")
# Paths of the component index_pictures, by the function that it calls.
_INDEX, _INDEXED = "index_folder", ("source", "captions")


def list_sources(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return the URIs that `load_dataset` steps read, each once; without URIs computed in the run.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name; defaults are added.
    """
    return list(dict.fromkeys(_iterate_uris(spec, arguments)))


def check_local_sources(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Look for the files of `load_dataset` and `index_pictures` steps, and read language models' examples.

    Args:
        spec: A compiled pipeline.
        arguments: Run arguments by name; defaults are added.

    Raises:
        UserError: There is no such file, a line is no example, or they are too few.
    """
    from kfp_mindspore.data.fetch import resolve_path
    from kfp_mindspore.data.load import check_source
    from kfp_mindspore.lm.text.examples import check_examples

    for task in list_known_tasks(spec, arguments):
        for source in _list_sources(task):
            check_source(source)
        data, held_out = (task.arguments.get(name) for name in ("data", "held_out"))
        if isinstance(data, str) and data and not _EXAMPLES.isdisjoint(task.functions):
            check_examples(data, held_out)
        for name in _INDEXED if _INDEX in task.functions else ():
            path = task.arguments.get(name)
            if isinstance(path, str) and path and "://" not in path:
                resolve_path(path, hint=f"Give {name} as a path or URI.")


def _iterate_uris(spec: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    for task in list_known_tasks(spec, arguments):
        yield from (source for source in _list_sources(task) if "://" in source)


def _list_sources(task: KnownTask) -> list[str]:
    values = [task.arguments.get(name) for name in _PARAMETERS] if _FUNCTION in task.functions else []
    return [value for value in values if isinstance(value, str) and value]
