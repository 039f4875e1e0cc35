"""Classes of texts: better than TF-IDF and logistic regression, and served by texts, from the set and a file."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from kfp_mindspore.cli.init import write_project
from kfp_mindspore.cli.main import run
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.mindir import evaluate_bundle, export_mindir
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.long)])
def test_network_beats_words_without_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    from kfp_mindspore.workloads.text_classification import train

    found, baseline = [], []
    for seed in range(seeds):
        data, output = tmp_path / f"data-{seed}", tmp_path / f"output-{seed}"
        dataset = load_dataset("reviews", data, seed=seed)
        monkeypatch.setenv("KFP_MINDSPORE_DATASET_DIR", str(data))
        monkeypatch.setenv("KFP_MINDSPORE_OUTPUT_DIR", str(output))
        train.main(["--seed", str(seed)])
        export_mindir(output / "checkpoint", output / "model", dataset_dir=data)
        found.append(evaluate_bundle(output / "model", data, metric="accuracy").value)
        texts = {split: read_samples(dataset, split) for split in ("train", "test")}
        words = {split: [text.decode() for text in samples.raw["text"]] for split, samples in texts.items()}
        model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=10, max_iter=500))
        baseline.append(model.fit(words["train"], texts["train"].target).score(words["test"], texts["test"].target))
    print(f"reviews: accuracy {np.round(found, 4)}, TF-IDF and logistic regression {np.round(baseline, 4)}")
    assert np.mean(found) > np.mean(baseline) + 0.03, (found, baseline)


def predict(url: str, name: str, body: dict[str, Any], version: str) -> Any:
    path = f"v1/models/{name}:predict" if version == "v1" else f"v2/models/{name}/infer"
    with urllib.request.urlopen(f"{url}/{path}", json.dumps(body).encode(), timeout=30) as response:
        return json.loads(response.read())


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_template_trains_on_file_and_serves_texts(
    kind: str, local_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow
    from pyarrow import csv

    reviews = load_dataset("reviews", tmp_path / "reviews", limit=1500)
    columns = reviews.read_columns("train")
    texts = [text.decode() for text in columns["text"]]
    labels = ["angry" if label == 0 else "happy" for label in columns["label"]]
    project, name = tmp_path / "my-tickets", "my-tickets"
    write_project(project, "text-classification")
    file = project / f"tickets.{kind}"
    if kind == "csv":
        csv.write_csv(pyarrow.table({"id": range(len(texts)), "message": texts, "mood": labels}), file)
    else:
        rows = [{"message": text, "mood": label} for text, label in zip(texts, labels, strict=True)]
        file.write_text("\n".join(map(json.dumps, rows)))
    arguments = {"dataset": str(file), "text": "message", "label": "mood", "epochs": 6, "threshold": 0.75}
    if kind == "jsonl":
        # Training, evaluation and server use the same subwords: the smoke test compares their scores.
        arguments["unit"] = "subwords"
    result = run_local(project / "pipeline.py", arguments, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.check().gates[0].passed
        url = client.get(name).url
        instances = [{"message": "The lid is not awful at all."}, {"message": "I would never buy it again."}]
        found = predict(url, name, {"instances": instances}, "v1")["predictions"]
        assert [row["label"] for row in found] == ["happy", "angry"]
        data = [row["message"] for row in instances]
        body = {"inputs": [{"name": "message", "shape": [2], "datatype": "BYTES", "data": data}]}
        outputs = {output["name"]: output["data"] for output in predict(url, name, body, "v2")["outputs"]}
        assert outputs["label"] == ["happy", "angry"]
        bundle = next(artifact["uri"] for _, key, artifact in result.list_artifacts() if key == "bundle")
        capsys.readouterr()
        assert run(["model", "predict", bundle, str(file), "--json"]) == 0
        predicted = json.loads(capsys.readouterr().out)["outputs"]
        assert len(predicted["label"]) == len(texts)
    finally:
        client.delete(name)
