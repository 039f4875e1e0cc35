"""The data sets that scikit-learn brings; no network is needed."""

from __future__ import annotations

import inspect
from typing import Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields
from kfp_mindspore.errors import MissingExtraError

NAMES = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")
_WHITE = 16


def import_datasets() -> Any:
    """Import sklearn.datasets.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtraError("sklearn", "train") from None
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

    load = getattr(import_datasets(), f"load_{name}")
    # Diabetes: its own units, as a client has them.
    raw = load(scaled=False) if "scaled" in inspect.signature(load).parameters else load()
    columns: dict[str, Any] = {}
    if name == "digits":
        columns["image"] = raw.images[:, None].astype(np.float32)
    else:
        matrix = raw.data.astype(np.float32)
        columns |= {str(field): matrix[:, index] for index, field in enumerate(raw.feature_names)}
    targets = raw.target.reshape(len(raw.target), -1)
    is_class = targets.shape[1] == 1 and targets.dtype.kind in "iu"
    fields = ["label" if is_class else "target"] if targets.shape[1] == 1 else [str(one) for one in raw.target_names]
    columns |= {field: targets[:, index] for index, field in enumerate(fields)}
    where = f"{name} (scikit-learn)"
    select_fields(where, request, list(columns))
    steps = (Normalize(0, _WHITE, column="image"),) if name == "digits" else ()
    labels = tuple(str(label) for label in raw.target_names) if is_class else ()
    return Source(
        "scikit-learn", where, columns, target=tuple(fields), labels=labels, steps=steps, is_table=name != "digits"
    )
