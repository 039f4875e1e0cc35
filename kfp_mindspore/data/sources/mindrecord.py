"""MindRecord files, by MindSpore."""

from __future__ import annotations

from pathlib import Path

from kfp_mindspore.data.sources.arrays import convert_array
from kfp_mindspore.data.sources.base import Source, SourceRequest, guess_target, select_fields
from kfp_mindspore.formats import mindrecord
from kfp_mindspore.formats.names import normalize_name


def read_mindrecord(path: Path, request: SourceRequest) -> Source:
    """Read a .mindrecord file.

    Raises:
        UserError: It cannot be read, or a field is missing.
        MissingExtraError: MindSpore is not installed.
    """
    where = f"{path.name} (MindRecord)"
    found = {normalize_name(name): array for name, array in mindrecord.read_fields(path).items()}
    columns = {
        name: found[name] if found[name].dtype == object else convert_array(f"{where}: {name}", found[name])
        for name in select_fields(where, request, list(found))
    }
    return Source("MindRecord", where, columns, target=guess_target(list(columns)))
