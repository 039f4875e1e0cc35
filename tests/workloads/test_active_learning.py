"""Active learning on digits: better than random selection with as many labels, and served."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(1200)]

SEEDS = (0, 1, 2)


@pytest.mark.long
def test_selection_beats_random_selection_with_as_many_labels(tmp_path: Path) -> None:
    from kfp_mindspore.workloads.active_learning.compare import simulate

    dataset = load_dataset("digits", tmp_path / "digits")
    last = {
        strategy: np.mean([simulate(dataset, strategy, seed=seed)[-1] for seed in SEEDS])
        for strategy in ("random", "entropy", "margin", "k_centre")
    }
    for strategy in ("entropy", "margin", "k_centre"):
        assert last[strategy] >= last["random"] + 0.02, last


def test_pipeline_serves_model_of_last_round(local_home: Path) -> None:
    arguments = {"service_name": "few-labels"}
    result = run_local("active_learning", arguments, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.state == "succeeded"
        rounds = [name for name in result.steps if name.startswith("select-samples")]
        labelled = sorted(result.steps[name].outputs["labelled"] for name in rounds)
        assert labelled == [40, 60, 80, 100]
        assert result.steps["evaluate-mindir"].outputs["value"] >= 0.85
        dataset = Dataset.open(next(path.parent for path in result.directory.rglob("dataset.json")))
        columns = dataset.read_columns("test")
        rows = {"instances": columns["image"][:100].tolist()}
        request = urllib.request.Request(
            f"{client.get('few-labels').url}/v1/models/few-labels:predict", json.dumps(rows).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            predictions = json.loads(response.read())["predictions"]
        truth = [dataset.labels[index] for index in columns["label"][:100]]
        hits = [row["label"] == label for row, label in zip(predictions, truth, strict=True)]
        assert sum(hits) >= 80
    finally:
        client.delete("few-labels")
