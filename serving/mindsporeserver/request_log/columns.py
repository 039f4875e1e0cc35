"""Columns that the log leaves out, and columns whose values it hashes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.options import to_text
from mindsporeserver.models.served_model import ServedModel, TensorModel


class ColumnFilter:
    """Changes logged bodies.

    A changed body has a model's own columns, inputs and outputs only: neither further columns of a request nor tensors
    into which a table's columns are packed.

    Args:
        omitted: Columns that are left out.
        hashed: Columns whose values are hashed.
        key: The hashes' key; empty for hashes that anybody can compute.
    """

    def __init__(self, omitted: Iterable[str], hashed: Iterable[str], key: str) -> None:
        self._omitted = frozenset(map(normalize_name, omitted))
        self._hashed = frozenset(map(normalize_name, hashed))
        self._key = key.encode()

    def check(self, model: ServedModel) -> None:
        """Refuse a model that does not have the columns.

        Raises:
            UserError: Naming the column.
        """
        names = sorted({name for group in list_columns(model) for name in group})
        for name in sorted(self._omitted | self._hashed):
            if name not in names:
                found = f"one of {', '.join(names)}" if names else "none for a language model"
                field = "omit" if name in self._omitted else "hash"
                raise UserError(f"model {model.name}: logger.{field}: must be {found}, got {name!r}")

    def change(self, body: Any, model: ServedModel) -> dict[str, Any]:
        """Return a V1 or V2 body, as `payloads.read_value` does, without the omitted and with hashed values."""
        inputs, outputs = list_columns(model)
        for field, names in (("inputs", inputs), ("outputs", outputs)):
            tensors = body.get(field)
            if tensors and isinstance(tensors[0], Mapping) and "datatype" in tensors[0]:
                kept = {key: body[key] for key in ("model_name", "model_version", "id") if key in body}
                return {**kept, field: [changed for item in tensors if (changed := self._change_tensor(item, names))]}
        if "predictions" in body:
            return {"predictions": self._change_rows(body["predictions"], outputs)}
        return {"instances": self._change_rows(body.get("instances", body.get("inputs", [])), inputs)}

    def _change_rows(self, rows: Any, names: Sequence[str]) -> Any:
        if isinstance(rows, Mapping):
            # Outputs without rows in common.
            return self._change_row(rows, names)
        if any(isinstance(row, Mapping) and row.keys() != {"b64"} for row in rows):
            return [self._change_row(row, names) for row in rows]
        if len(names) != 1 or names[0] in self._omitted:
            return []
        return [self._hash(row) for row in rows] if names[0] in self._hashed else rows

    def _change_row(self, row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        changed = {}
        for key, value in row.items():
            name = normalize_name(key)
            if name in names and name not in self._omitted:
                changed[name] = self._hash(value) if name in self._hashed else value
        return changed

    def _change_tensor(self, tensor: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
        name = normalize_name(tensor["name"])
        if name not in names or name in self._omitted:
            return None
        if name not in self._hashed:
            return {**tensor, "name": name}
        data = tensor["data"] if isinstance(tensor["data"], list) else tensor["data"].tolist()
        rows = int(tensor["shape"][0]) if tensor["shape"] else 1
        if rows and len(data) != rows:
            # Flat: V2 allows nested lists, too.
            size = len(data) // rows
            data = [data[start : start + size] for start in range(0, len(data), size)] if size else [[]] * rows
        return {"name": name, "shape": [rows], "datatype": "BYTES", "data": [self._hash(value) for value in data]}

    def _hash(self, value: Any) -> str | None:
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        # A missing value stays missing, and NaN is null in a body.
        if value is None or value != value:
            return None
        return hmac.new(self._key, to_text(value).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def list_columns(model: ServedModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of what a request may have and of a response's outputs; none for a language model."""
    if not isinstance(model, TensorModel):
        return (), ()
    inputs = tuple(model.readers) if model.rows is None else model.rows.layout.columns
    return tuple(map(normalize_name, inputs)), tuple(map(normalize_name, model.output_names))
