"""metrics.jsonl: one JSON object per epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kfp_mindspore import files
from kfp_mindspore.errors import UserError


class History:
    """A run's records in memory and, if a path is given, in a file that grows by a line per epoch.

    Args:
        path: The file, or None; an existing file is replaced by `records`.
        records: Earlier epochs' records, after a resume.
    """

    def __init__(self, path: Path | None, records: Sequence[dict[str, Any]] = ()) -> None:
        self.path = path
        self.records = [dict(record) for record in records]
        if path is not None:
            files.write_text(path, self.to_text())

    def append(self, record: dict[str, Any]) -> None:
        """Add an epoch's record; `write_last` writes it."""
        self.records.append(record)

    def write_last(self) -> None:
        """Add the last record to the file.

        Raises:
            UserError: The disk is full, or the file cannot be written.
        """
        if self.path is not None:
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(_to_line(self.records[-1]))
            except OSError as error:
                raise UserError(f"{self.path}: cannot be written ({error.strerror})") from error

    def to_text(self) -> str:
        """Return the whole file's text."""
        return "".join(_to_line(record) for record in self.records)


def read_history(path: Path | str) -> list[dict[str, Any]]:
    """Read a metrics.jsonl; a truncated last line is ignored.

    Args:
        path: The file; a missing one has no records.
    """
    path = Path(path)
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            records.append(json.loads(line))
    return records


def _to_line(record: dict[str, Any]) -> str:
    return json.dumps(_to_finite(record)) + "\n"


def _to_finite(value: Any) -> Any:
    """Return `value` with NaN and infinities, which JSON lacks, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _to_finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_to_finite(item) for item in value]
    return value
