"""A Vision Transformer on Fashion-MNIST: better than a logistic regression of the pixels, and served."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import read_samples
from kfp_mindspore.data.sources.fashion_mnist import DIRECTORY
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local

pytestmark = [
    pytest.mark.workload,
    pytest.mark.long,
    pytest.mark.mindspore,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not DIRECTORY.is_dir(), reason="needs apt-get install dataset-fashion-mnist"),
]


def compute_baseline(dataset: Dataset) -> float:
    """Return the accuracy on the test split of the best of four logistic regressions."""
    from sklearn.linear_model import LogisticRegression

    train, test = (read_samples(dataset, split) for split in ("train", "test"))
    pixels, unseen = (samples.inputs["image"].reshape(len(samples), -1) for samples in (train, test))
    models = (LogisticRegression(C=strength, max_iter=100) for strength in (0.03, 0.1, 0.3, 1.0))
    return max(float(model.fit(pixels, train.target).score(unseen, test.target)) for model in models)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_pipeline_beats_logistic_regression_and_serves_raw_images(local_home: Path) -> None:
    result = run_local("vit", {"service_name": "clothes"}, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.state == "succeeded"
        dataset = Dataset.open(next(path.parent for path in result.directory.rglob("dataset.json")))
        accuracy = result.steps["evaluate-mindir"].outputs["value"]
        assert accuracy >= compute_baseline(dataset) + 0.03
        columns = dataset.read_columns("test")
        images = columns["image"][:50]
        assert (images.dtype, images.shape[1:], images.max()) == (np.uint8, (1, 28, 28), 255)
        request = urllib.request.Request(
            f"{client.get('clothes').url}/v1/models/clothes:predict",
            json.dumps({"instances": images.tolist()}).encode(),
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            predictions = json.loads(response.read())["predictions"]
        truth = [dataset.labels[index] for index in columns["label"][:50]]
        assert sum(row["label"] == label for row, label in zip(predictions, truth, strict=True)) >= 38
    finally:
        client.delete("clothes")
