"""The examples of a step: a named source, or an input artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp import dsl


def find_examples(path: Path) -> Path:
    """Return an artifact's file of JSON lines.

    Args:
        path: The file, or a directory with one file whose name ends with .jsonl.

    Raises:
        UserError: A directory has none or several.
    """
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.jsonl"))
    if len(found) != 1:
        raise UserError(f"{path}: must have one file *.jsonl, found {len(found)}")
    return found[0]


def choose_source(data: str, dataset: dsl.Dataset | None) -> str:
    """Return the source of a step's examples.

    Args:
        data: A name, a path or a URI; empty for `dataset`.
        dataset: An input artifact.

    Raises:
        UserError: Neither or both are given, or the artifact has no file of JSON lines or several.
    """
    if bool(data) == (dataset is not None):
        raise UserError("data: give either a name, path or URI, or the input dataset, got both or none")
    return data if dataset is None else str(find_examples(Path(dataset.path)))
