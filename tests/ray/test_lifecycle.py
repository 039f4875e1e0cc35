"""The pipeline `ray_lifecycle` on this machine: Ray Data, Ray Train, export, evaluation, a server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from sklearn import datasets

from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.mindspore, pytest.mark.long, pytest.mark.timeout(900)]


def test_pipeline_trains_on_ray_and_serves_rows(
    ray_session: Any, local_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The steps join the tests' Ray.
    monkeypatch.setenv("RAY_ADDRESS", ray_session.get_runtime_context().gcs_address)
    table = datasets.load_breast_cancer(as_frame=True).frame
    table.to_csv(tmp_path / "cells.csv", index=False)
    arguments = {"data": str(tmp_path / "cells.csv"), "target": ["target"], "threshold": 0.15, "service_name": "cells"}
    result = run_local("ray_lifecycle", arguments, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.state == "succeeded"
        dataset = Dataset.open(next(path.parent for path in result.directory.rglob("dataset.json")))
        # Ray Data writes shards.
        assert dataset.version == 3
        rows = table.head(100)
        instances = rows.drop(columns="target").to_numpy().tolist()
        request = urllib.request.Request(
            f"{client.get('cells').url}/v1/models/cells:predict", json.dumps({"instances": instances}).encode()
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            predictions = json.loads(response.read())["predictions"]
        hits = [int(row["label"]) == truth for row, truth in zip(predictions, rows["target"], strict=True)]
        assert sum(hits) >= 90
    finally:
        client.delete("cells")
