"""The data sets that scikit-learn brings; no network is needed."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields
from kfp_mindspore.errors import require_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

TABLES = ("breast_cancer", "diabetes", "iris", "linnerud", "wine")
NAMES = tuple(sorted((*TABLES, "digits")))
_DIGITS = "datasets/data/digits.csv.gz"
_WHITE = 16


def import_datasets() -> Any:
    """Import sklearn.datasets.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    with require_extra("sklearn", "train"):
        from sklearn import datasets
    return datasets


def read_set(name: str, request: SourceRequest) -> Source:
    """Read a set by its name in `NAMES`.

    `digits` has the field `image`, pixels from 0 to 16, float32 with shape (1, 8, 8), with a declared scaling; the
    other sets have scikit-learn's feature names.

    Raises:
        UserError: A field is missing.
        MissingExtraError: scikit-learn is not installed.
    """
    import numpy as np

    from kfp_mindspore.transform.values import Normalize

    where = f"{name} (scikit-learn)"
    if name == "digits":
        pixels, label = _read_digits()
        columns: dict[str, Any] = {"image": pixels.reshape(-1, 1, 8, 8).astype(np.float32), "label": label}
        select_fields(where, request, list(columns))
        labels = tuple(map(str, range(10)))
        steps = (Normalize(0, _WHITE, column="image"),)
        return Source("scikit-learn", where, columns, target=("label",), labels=labels, steps=steps, is_table=False)
    load = getattr(import_datasets(), f"load_{name}")
    # Diabetes: its own units, as a client has them.
    raw = load(scaled=False) if "scaled" in inspect.signature(load).parameters else load()
    matrix = raw.data.astype(np.float32)
    columns = {str(field): matrix[:, index] for index, field in enumerate(raw.feature_names)}
    targets = raw.target.reshape(len(raw.target), -1)
    is_class = targets.shape[1] == 1 and targets.dtype.kind in "iu"
    fields = ["label" if is_class else "target"] if targets.shape[1] == 1 else [str(one) for one in raw.target_names]
    columns |= {field: targets[:, index] for index, field in enumerate(fields)}
    select_fields(where, request, list(columns))
    labels = tuple(str(label) for label in raw.target_names) if is_class else ()
    return Source("scikit-learn", where, columns, target=tuple(fields), labels=labels, is_table=True)


def _read_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return pixels (1797, 64) and labels, from scikit-learn's file: importing scikit-learn takes ten times as long."""
    import numpy as np

    package = importlib.util.find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    file = Path(folders[0]) / _DIGITS if folders else None
    if file is None or not file.is_file():
        pixels, label = import_datasets().load_digits(return_X_y=True)
        return pixels, label
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(np.int64)
