"""The set reviews: the same texts each time, split into words by its declared preprocessing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.sources.base import SourceRequest
from kfp_mindspore.data.sources.reviews import read_reviews
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset("reviews", tmp_path_factory.mktemp("reviews"))


def test_texts_are_same_each_time() -> None:
    columns = read_reviews(SourceRequest()).columns
    content = b"\n".join([*columns["text"], *columns["label"]])
    assert hashlib.sha256(content).hexdigest() == "3f217772eafc5de2d35ff7f5812b8ce508678e0b02919754747160723acb5876"
    assert len(set(columns["text"])) > 3900


def test_texts_become_ids_and_few_words_are_unknown(dataset: Dataset) -> None:
    assert (dataset.task, dataset.labels) == ("classification", ("negative", "positive"))
    samples = read_samples(dataset, "test")
    assert (samples.inputs["text"].dtype, samples.inputs["text"].shape[1]) == (np.int32, 64)
    assert 0 < dataset.report["unknown_tokens"]["text"]["test"] < 0.01
    assert 0.45 < np.mean(samples.target) < 0.55


def test_missing_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"reviews \(generated\): no field 'stars', found text, label"):
        load_dataset("reviews", tmp_path, target="stars")
