"""Packed weights: sizes, exactness and damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import CorruptBundleError
from kfp_mindspore.formats.packed import (
    SEARCHED_BITS,
    build_levels,
    count_bytes,
    pack,
    read_packed,
    widen,
    write_packed,
)


@given(st.sampled_from(sorted(SEARCHED_BITS)), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_searched_codes_are_widened_exactly(form: str, rows: int, columns: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    bits = SEARCHED_BITS[form]
    codes = generator.integers(0, 2**bits, (rows, columns)).astype(np.uint8)
    scale = generator.random(rows).astype(np.float32)

    parts = pack(np.zeros((rows, columns), np.float32), form, (codes, scale))

    np.testing.assert_array_equal(widen(parts, (rows, columns)), build_levels(bits)[codes] * scale[:, None])
    assert count_bytes(parts) == -(-rows * columns * bits // 8) + 4 * rows


@pytest.mark.parametrize(("form", "size", "error"), [("float32", 4, 0), ("float16", 2, 1e-3), ("int8", 1, 1 / 254)])
def test_forms_have_their_size_and_error(form: str, size: int, error: float) -> None:
    weight = np.random.default_rng(0).uniform(-1, 1, (6, 4, 3, 3)).astype(np.float32)

    parts = pack(weight, form)

    assert count_bytes(parts) == weight.size * size + (24 if form == "int8" else 0)
    np.testing.assert_allclose(widen(parts, weight.shape), weight, atol=error + 1e-7)


@pytest.mark.parametrize(
    ("array", "form"),
    [
        (np.array([1.5, -2.0], np.float32), "int8"),
        (np.array([1e6], np.float32), "float16"),
        (np.array([[1, 2]], np.int32), "slb1"),
    ],
    ids=["vector", "beyond-float16", "integers"],
)
def test_values_that_a_form_would_spoil_are_kept(array: np.ndarray, form: str) -> None:
    parts = pack(array, form)

    np.testing.assert_array_equal(widen(parts, array.shape), array)
    assert widen(parts, array.shape).dtype == array.dtype


def test_file_is_read_as_written_and_damage_is_named(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    packed = {"dense.weight": pack(weight, "int8"), "dense.bias": pack(weight[0], "int8")}
    file = tmp_path / "network.packed.npz"

    write_packed(file, packed, {"dense.weight": (3, 5), "dense.bias": (5,)})

    found = read_packed(file)
    np.testing.assert_array_equal(found["dense.weight"], widen(packed["dense.weight"], (3, 5)))
    np.testing.assert_array_equal(found["dense.bias"], weight[0])
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(CorruptBundleError, match=r"network\.packed\.npz: cannot be read as packed weights"):
        read_packed(file)
