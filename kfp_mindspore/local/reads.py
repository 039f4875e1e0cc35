"""Files that the processes in a run's step have opened for reading: modules, configuration, data.

Each Python process below a run imports `recorder/sitecustomize.py`, which appends the paths. Files in the standard
library and site-packages are not recorded. Not recorded either: files that native code or other programs open, and
processes that ignore PYTHONPATH (`python -I`, `-E`, `-S`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kfp_mindspore.settings import READS_VARIABLE

_RECORDER = str(Path(__file__).with_name("recorder"))


def add_recorder(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose Python processes record, if it names a record directory.

    Args:
        environment: The `KFP_MINDSPORE_READS` is the record directory, `KFP_MINDSPORE_STEP` the step name.
    """
    changed = dict(environment)
    paths = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if environment.get(READS_VARIABLE) and _RECORDER not in paths:
        changed["PYTHONPATH"] = os.pathsep.join([_RECORDER, *paths])
    return changed


def get_recorder(environment: Mapping[str, str]) -> Path | None:
    """Return the `sitecustomize` that an environment's Python processes import to record; None without a record."""
    is_recorded = _RECORDER in environment.get("PYTHONPATH", "").split(os.pathsep)
    return Path(_RECORDER, "sitecustomize.py") if is_recorded else None


def list_reads(directory: Path, step: str) -> list[Path]:
    """Return a step's recorded files that still exist, sorted.

    Args:
        directory: The record directory.
        step: Step name.
    """
    try:
        lines = (directory / step).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [path for path in (Path(os.fsdecode(line)) for line in sorted(set(lines))) if path.is_file()]
