"""A detector of drawn scenes: the pipeline trains, evaluates and serves it; pictures in, boxes in pixels out."""

from __future__ import annotations

import base64
import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import DETECTOR_KIND, ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local
from tests.support.template_detector import compute_baseline

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(1800)]


def run_pipeline(home: Path, **arguments: float) -> tuple[float, Dataset]:
    """Run the pipeline, check the service, and return the metric and the dataset."""
    result = run_local("detection", {"service_name": "forms", **arguments}, home=home, keep=True)
    client = InferenceClient(LocalServingBackend(home))
    try:
        assert result.state == "succeeded"
        artifacts = {name: artifact["uri"] for _, name, artifact in result.list_artifacts()}
        assert ModelBundle.open(artifacts["bundle"]).signature.kind == DETECTOR_KIND
        dataset = Dataset.open(artifacts["dataset"])
        pictures = dataset.read_columns("test")["image"][:3]
        body = {
            "instances": [{"b64": base64.b64encode(content).decode()} for content in pictures],
            "parameters": {"threshold": 0.0},
        }
        request = urllib.request.Request(
            f"{client.get('forms').url}/v1/models/forms:predict", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            predictions = json.loads(response.read())["predictions"]
        assert len(predictions) == 3
        for found in predictions:
            assert found["count"] == len(found["labels"]) == 16
            assert set(found["labels"]) <= set(dataset.labels)
            boxes = np.array(found["boxes"])
            # Pixels of a picture of 64 x 64.
            assert boxes.max() > 2
            assert (boxes[:, 2:] > boxes[:, :2]).all()
    finally:
        client.delete("forms")
    return result.steps["evaluate-mindir"].outputs["value"], dataset


def test_short_training_is_evaluated_and_served(local_home: Path) -> None:
    value, dataset = run_pipeline(local_home, epochs=6, threshold=0.0)
    # The default run's 60 epochs reach more than 0.8; untrained networks have less than 0.01.
    assert value > 0.08
    assert dataset.report["boxes"]["train"]["most"] == 4
    # Sliding templates know the forms and their sizes.
    assert np.nanmean(compute_baseline(dataset, 20)[0]) > 0.5
