"""The transforms of docs/transforms.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import VerifiedSamples
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.transform import Arrays, TensorSpec
from kfp_mindspore.transform.export import try_transform
from kfp_mindspore.transform.load import load_transform_source

PAGE = Path(__file__).parents[3] / "docs" / "transforms.md"

CASES = {
    "def build_transform(": Signature(
        (TensorSpec("image", "float32", (-1, 3, 32, 32)),),
        (TensorSpec("output", "float32", (-1, 4)),),
        "2.9.0",
        metadata={"labels": '["cat", "dog", "eel", "lynx"]'},
    ),
    "class Tokens(": Signature(
        (TensorSpec("ids", "int32", (-1, 64)), TensorSpec("mask", "float32", (-1, 64))),
        (TensorSpec("output", "float32", (-1, 4)),),
        "2.9.0",
    ),
}


@pytest.mark.parametrize("part", CASES)
def test_transform_of_page(part: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (source,) = [block for block in blocks if part in block]
    signature = CASES[part]
    bound = load_transform_source(PAGE, source.encode(), signature)
    seen: list[Arrays] = []

    def compute(arrays: Arrays) -> Arrays:
        seen.append(arrays)
        return {"output": np.tile(np.array([0, 3, 1, 2], np.float32), (2, 1))}

    samples = {
        spec.name: np.zeros((2, *spec.shape[1:]), spec.dtype) for spec in (*signature.inputs, *signature.outputs)
    }
    inputs = {spec.name: samples[spec.name] for spec in signature.inputs}
    example = try_transform(bound, VerifiedSamples(inputs, {"output": samples["output"]}, None), compute)
    assert example is not None
    assert {name: array.shape for name, array in seen[0].items()} == {
        spec.name: (2, *spec.shape[1:]) for spec in signature.inputs
    }
    if "classes" in example.outputs:
        assert example.outputs["classes"][0].tolist() == [b"dog", b"lynx", b"eel"]
