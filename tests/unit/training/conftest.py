"""Fixtures of the tests of trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.data import load_dataset


@pytest.fixture(scope="session")
def digits_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the data set `digits`."""
    return load_dataset("digits", tmp_path_factory.mktemp("data") / "digits").path
