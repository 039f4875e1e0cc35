"""Regression and classification of rows: better than tuned linear models of the same training split, and served."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss, root_mean_squared_error

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.mindir import evaluate_bundle, export_mindir
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(1200)]

SEEDS = (0, 1, 2)


def compute_baseline(dataset: Path) -> float:
    """Return the test metric of a linear model whose regularisation is tuned by cross-validation."""
    train, test = (read_samples(dataset, split) for split in ("train", "test"))
    features, tests = train.inputs["features"], test.inputs["features"]
    if train.target.dtype.kind == "f":
        ridge = RidgeCV(np.logspace(-2, 3, 26)).fit(features, train.target)
        return float(root_mean_squared_error(test.target, ridge.predict(tests)))
    model = LogisticRegressionCV(Cs=np.logspace(-3, 2, 16), cv=5, scoring="neg_log_loss", max_iter=2000)
    return float(log_loss(test.target, model.fit(features, train.target).predict_proba(tests)))


@pytest.mark.parametrize(("name", "metric"), [("diabetes", "rmse"), ("breast_cancer", "log_loss")])
def test_network_beats_tuned_linear_model(
    name: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kfp_mindspore.workloads.tabular import train

    found, baseline = [], []
    for seed in SEEDS:
        data, output = tmp_path / f"data-{seed}", tmp_path / f"output-{seed}"
        load_dataset(name, data, seed=seed)
        monkeypatch.setenv("KFP_MINDSPORE_DATASET_DIR", str(data))
        monkeypatch.setenv("KFP_MINDSPORE_OUTPUT_DIR", str(output))
        train.main(["--seed", str(seed)])
        export_mindir(output / "checkpoint", output / "model", dataset_dir=data)
        found.append(evaluate_bundle(output / "model", data, metric=metric).value)
        baseline.append(compute_baseline(data))
    print(f"{name}: {metric} {np.round(found, 4)}, linear model {np.round(baseline, 4)}")
    assert np.mean(found) < np.mean(baseline), (found, baseline)


# Name of the set, fields of the target and the features in the CSV file, metric and threshold.
PIPELINES: dict[str, tuple[str, dict[str, Any]]] = {
    "regression of a CSV file": (
        "diabetes",
        {
            "target": ["progression"],
            "features": ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"],
            "metric": "rmse",
            "threshold": 60.0,
        },
    ),
    "classification of a named set": ("breast_cancer", {"metric": "log_loss", "threshold": 0.12}),
}


@pytest.mark.parametrize("case", PIPELINES)
def test_pipeline_serves_raw_rows(case: str, local_home: Path, tmp_path: Path) -> None:
    name, arguments = PIPELINES[case]
    dataset = name
    if "target" in arguments:
        frame = datasets.load_diabetes(as_frame=True, scaled=False).frame
        dataset = str(tmp_path / "patients.csv")
        frame.rename(columns={"target": "progression"}).rename_axis("patient").to_csv(dataset)
    result = run_local("tabular", {"dataset": dataset, **arguments}, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.check().gates[0].passed
        data = next(path.parent for path in result.directory.rglob("dataset.json"))
        test = read_samples(data, "test")
        assert result.steps["evaluate-mindir"].outputs["samples"] == len(test.target)
        body = json.dumps({"instances": test.raw["features"].tolist()}).encode()
        with urllib.request.urlopen(f"{client.get('tabular').url}/v1/models/tabular:predict", body, timeout=30) as got:
            predictions = json.loads(got.read())["predictions"]
        if name == "diabetes":
            assert root_mean_squared_error(test.target, predictions) == pytest.approx(
                result.steps["evaluate-mindir"].outputs["value"], rel=1e-4
            )
        else:
            labels = np.array(["malignant", "benign"])[test.target]
            assert np.mean([row["label"] == label for row, label in zip(predictions, labels, strict=True)]) > 0.95
    finally:
        client.delete("tabular")
