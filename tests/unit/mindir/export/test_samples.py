"""The postprocessing that a bundle declares, by task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.mindir.export.samples import ExportSamples, declare_serving
from kfp_mindspore.transform import Tokenize
from kfp_mindspore.transform.declaration import declare_step

LABELS = ("", "?", "a")


@pytest.mark.parametrize(
    ("task", "steps", "shapes", "post"),
    [
        ("classification", [], [(-1, 3)], [{"type": "Label", "labels": [*LABELS]}]),
        ("classification", [], [(-1, 2), (-1, 3)], [{"type": "Label", "labels": [*LABELS], "column": "output1"}]),
        ("classification", [], [(-1, 2)], []),
        ("regression", [], [(-1, 3)], []),
        (
            "language_model",
            [Tokenize(4, values=["a"], side="left")],
            [(-1, 4, 3)],
            [{"type": "Label", "labels": [*LABELS], "name": "next", "last": True}],
        ),
        ("language_model", [Tokenize(4, values=["a"])], [(-1, 4, 3)], []),
        ("language_model", [Tokenize(4, values=["a"], side="left")], [(-1, 3)], []),
        ("language_model", [], [(-1, 4, 3)], []),
    ],
)
def test_declared_postprocessing(
    task: str, steps: list[Any], shapes: list[tuple[int, ...]], post: list[dict[str, Any]]
) -> None:
    raw = {"text": np.array([b"aa"], object)}
    declaration = {"pre": [declare_step(step) for step in steps]} if steps else {}
    samples = ExportSamples(raw, raw, declaration, labels=LABELS, task=task)
    outputs = [TensorSpec(f"output{index}", "float32", shape) for index, shape in enumerate(shapes)]
    assert declare_serving(samples, {}, outputs).get("post", []) == post
