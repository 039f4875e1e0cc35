"""Augmentation, learning rates and command line of the digits training script, without MindSpore."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from kfp_mindspore.workloads.digits import train


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).random((64, 1, 8, 8), dtype=np.float32)


def test_distortion_keeps_shape_dtype_and_range(images: np.ndarray) -> None:
    distorted = train.distort(images, np.random.default_rng(1))
    assert distorted.shape == images.shape
    assert distorted.dtype == np.float32
    assert distorted.min() >= 0
    assert distorted.max() <= 1
    assert not np.array_equal(distorted, images)


def test_distortion_depends_on_seed_only(images: np.ndarray) -> None:
    first, again, other = (train.distort(images, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_distortion_stays_small(images: np.ndarray) -> None:
    """The centre of mass of a blob moves by a pixel at most."""
    blob = np.zeros_like(images)
    blob[:, :, 3:5, 3:5] = 1
    moved = train.distort(blob, np.random.default_rng(3))[:, 0]
    places = np.arange(8)
    for axis in (1, 2):
        centre = (moved.sum(axis=3 - axis) * places).sum(axis=1) / moved.sum(axis=(1, 2))
        assert np.abs(centre - 3.5).max() < 1


class Still:
    """A generator of no distortion."""

    def uniform(self, low: float, high: float, size: object) -> np.ndarray:
        return np.zeros(size)  # type: ignore[call-overload]


def test_distortion_of_zero_is_identity(images: np.ndarray) -> None:
    assert np.allclose(train.distort(images, Still()), images)  # type: ignore[arg-type]


def test_help_imports_neither_kfp_nor_mindspore() -> None:
    code = (
        "import sys; from kfp_mindspore.workloads.digits import train\n"
        "try: train.main(['--help'])\n"
        "except SystemExit: print([name for name in ('kfp', 'mindspore', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--learning-rate" in done.stdout
