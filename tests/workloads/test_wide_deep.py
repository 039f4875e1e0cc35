"""Wide & Deep on MovieLens: better than the mean of each movie and than logistic regression, and served by raw ids."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from kfp_mindspore.data import read_samples
from kfp_mindspore.data.samples import Samples
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(1200)]

SERVICE = "films"


def score_by_movie(train: Samples, test: Samples) -> float:
    """Return the AUC of each movie's fraction of likes; that of all ratings for an unknown movie."""
    counts = np.bincount(train.inputs["movie"])
    likes = np.bincount(train.inputs["movie"], train.target)
    means = np.divide(likes, counts, where=counts > 0, out=np.full(len(counts), train.target.mean()))
    return float(roc_auc_score(test.target, means[test.inputs["movie"]]))


def score_by_regression(train: Samples, test: Samples) -> float:
    """Return the better AUC of logistic regressions over ids with the default and a stronger penalty."""
    pairs = [np.stack([part.raw["user"], part.raw["movie"]], axis=1) for part in (train, test)]
    encoder = OneHotEncoder(handle_unknown="ignore").fit(pairs[0])
    columns, held_out = map(encoder.transform, pairs)
    models = [LogisticRegression(C=penalty, max_iter=500).fit(columns, train.target) for penalty in (1, 0.1)]
    return max(float(roc_auc_score(test.target, model.decision_function(held_out))) for model in models)


def post(url: str, instance: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = json.dumps({"instances": [instance]}).encode()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"{url}/v1/models/{SERVICE}:predict", body), timeout=30
        ) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_pipeline_beats_baselines_and_serves_raw_ids(local_home: Path) -> None:
    result = run_local("wide_deep", {"service_name": SERVICE}, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.state == "succeeded"
        dataset = Dataset.open(next(path.parent for path in result.directory.rglob("dataset.json")))
        train, test = read_samples(dataset, "train"), read_samples(dataset, "test")
        value = result.steps["evaluate-mindir"].outputs["value"]
        assert value >= score_by_movie(train, test) + 0.02
        assert value >= score_by_regression(train, test) + 0.01

        url = client.get(SERVICE).url
        raw = {name: array[0] for name, array in test.raw.items()}
        known = {"user": int(raw["user"]), "movie": int(raw["movie"]), "genres": raw["genres"].decode()}
        status, answer = post(url, known)
        assert status == 200
        (prediction,) = answer["predictions"]
        no, yes = prediction["output"]
        assert no + yes == pytest.approx(1)
        assert prediction["label"] == ("yes" if yes > no else "no")
        unknown = {"user": 10**9, "movie": -1, "genres": "Comedy Operetta"}
        status, answer = post(url, unknown)
        assert status == 200
        assert answer["predictions"][0]["label"] in dataset.labels
        # Beyond int32: no id of the dataset has this type.
        status, answer = post(url, {**known, "user": 2**40})
        assert status == 400
        assert "user" in answer["error"]
    finally:
        client.delete(SERVICE)
