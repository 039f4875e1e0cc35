"""Baselines on a dataset's splits, beside a model's metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.samples import Samples
from kfp_mindspore.evaluation.metrics import compute_metrics
from kfp_mindspore.evaluation.predictions import build_predictions
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir.baselines import compute_baselines
from kfp_mindspore.mindir.evaluate import add_baselines, summarize
from kfp_mindspore.steps.evaluation.reports import render_evaluation


def make_samples(target: Any, **inputs: Any) -> Samples:
    return Samples({name: np.asarray(array) for name, array in inputs.items()}, np.asarray(target), None, {}, inputs)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    root = tmp_path_factory.mktemp("data")
    return {name: load_dataset(name, root / name) for name in ("diabetes", "wine", "digits")}


@pytest.mark.parametrize(
    ("name", "constant", "linear", "metric", "least"),
    [
        ("diabetes", "mean", "ridge regression", "r2", 0.35),
        ("wine", "class frequencies", "logistic regression", "accuracy", 0.9),
        ("digits", "class frequencies", "logistic regression", "accuracy", 0.9),
    ],
)
def test_linear_model_beats_constant(
    datasets: dict[str, Dataset], name: str, constant: str, linear: str, metric: str, least: float
) -> None:
    dataset = datasets[name]
    train, test = read_samples(dataset, "train"), read_samples(dataset, "test")
    found = compute_baselines(dataset.task, train, test, labels=dataset.labels)
    assert list(found) == [constant, linear]
    metrics = {title: compute_metrics(predictions)[metric] for title, predictions in found.items()}
    assert metrics[linear] > least > metrics[constant]


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_ridge_regression_is_that_of_scikit_learn(columns: tuple[int, ...], is_weighted: bool) -> None:
    random = np.random.default_rng(0)
    features, target = random.normal(size=(50, 4)), random.normal(7, 3, size=(50, *columns))
    weight = random.uniform(0.5, 2, 40) if is_weighted else None
    inputs = {"x": features[:40]}
    train = Samples(inputs, target[:40], weight, {}, inputs)
    found = compute_baselines("regression", train, make_samples(target[40:], x=features[40:]))["ridge regression"]
    scaled = (features - features[:40].mean(0)) / features[:40].std(0)
    model = Ridge().fit(scaled[:40], target[:40], sample_weight=weight)
    np.testing.assert_allclose(found.values.ravel(), model.predict(scaled[40:]).ravel(), rtol=1e-8)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_logistic_regression_is_that_of_scikit_learn(classes: int, is_weighted: bool) -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 5))
    target = (features @ random.normal(size=(5, classes)) + random.normal(size=(200, classes))).argmax(1)
    weight = random.uniform(0.5, 2, 150) if is_weighted else None
    inputs = {"x": features[:150]}
    train = Samples(inputs, target[:150], weight, {}, inputs)
    labels = tuple("abcde"[: classes + 1])
    found = compute_baselines("classification", train, make_samples(target[150:], x=features[150:]), labels=labels)
    scaled = (features - features[:150].mean(0)) / features[:150].std(0)
    model = LogisticRegression().fit(scaled[:150], target[:150], sample_weight=weight)
    probabilities = found["logistic regression"].probabilities
    assert probabilities is not None
    np.testing.assert_allclose(probabilities[:, :classes], model.predict_proba(scaled[150:]), atol=0.01)
    assert not probabilities[:, classes].any()


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_linear_models_do_not_import_scikit_learn(task: str) -> None:
    program = f"""import sys, numpy as np
from kfp_mindspore.data.samples import Samples
from kfp_mindspore.mindir.baselines import compute_baselines
x = np.arange(20.0).reshape(10, 2)
samples = Samples({{"x": x}}, np.arange(10) % 2, None, {{}}, {{"x": x}})
assert len(compute_baselines("{task}", samples, samples, labels=("a", "b"))) == 2
assert "sklearn" not in sys.modules and "pandas" not in sys.modules"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_constants_are_those_of_training_split() -> None:
    train = make_samples([1.0, 2.0, 6.0], x=np.zeros((3, 1), np.float32))
    held_out = make_samples([5.0], x=np.zeros((1, 1), np.float32))
    assert compute_baselines("regression", train, held_out)["mean"].values.tolist() == [3.0]
    train = make_samples(np.array([0, 0, 1]), x=np.zeros((3, 1), np.float32))
    held_out = make_samples(np.array([1]), x=np.zeros((1, 1), np.float32))
    found = compute_baselines("classification", train, held_out, labels=("a", "b"))["class frequencies"]
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities, [[2 / 3, 1 / 3]])


def test_indexes_become_vectors_and_wide_inputs_have_no_linear_model() -> None:
    index = np.arange(60, dtype=np.int32) % 3
    target = np.array([5.0, -1.0, 2.0])[index]
    train, held_out = make_samples(target, index=index), make_samples(target[:6], index=index[:6])
    found = compute_baselines("regression", train, held_out)
    assert compute_metrics(found["ridge regression"])["rmse"] < 0.5
    wide = make_samples(target, image=np.zeros((60, 5000), np.float32))
    assert list(compute_baselines("regression", wide, wide)) == ["mean"]
    assert compute_baselines("ranking", train, held_out) == {}


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_texts_have_terms_beside_numbers(unit: str) -> None:
    generator = np.random.default_rng(0)
    words = generator.choice(["red", "green", "blue"], (120, 4))
    numbers = generator.standard_normal((120, 2)).astype(np.float32)
    target = ((words == "red").any(axis=1) & (numbers[:, 0] > 0)).astype(np.int32)
    texts = np.array([" ".join(row).encode() for row in words], object)
    inputs = {"text": np.zeros((120, 8), np.int32), "numbers": numbers}
    samples = Samples(inputs, target, None, {}, {"text": texts, "numbers": numbers})
    found = compute_baselines("classification", samples, samples, labels=("no", "yes"), texts={"text": unit})
    assert list(found) == ["class frequencies", "TF-IDF and logistic regression"]
    assert compute_metrics(found["TF-IDF and logistic regression"])["accuracy"] > 0.85
    alone = compute_baselines("classification", samples, samples, labels=("no", "yes"))
    ids = compute_metrics(alone["logistic regression"])["accuracy"]
    assert compute_metrics(found["TF-IDF and logistic regression"])["accuracy"] > ids + 0.05
    regression = Samples(inputs, target.astype(np.float32), None, {}, samples.raw)
    assert list(compute_baselines("regression", regression, regression, texts={"text": unit})) == [
        "mean",
        "TF-IDF and ridge regression",
    ]


def test_texts_without_words_have_baseline_of_numbers() -> None:
    texts = np.array([b"...", b"?", b"", b"!"], object)
    numbers = np.array([[0], [1], [0], [1]], np.float32)
    samples = Samples({"text": np.zeros((4, 2), np.int32), "x": numbers}, numbers[:, 0], None, {}, {"text": texts})
    assert len(compute_baselines("regression", samples, samples, texts={"text": "words"})) == 2


def test_text_dataset_is_evaluated_beside_its_terms(tmp_path: Path) -> None:
    dataset = load_dataset("reviews", tmp_path, limit=1000)
    target = read_samples(dataset, "test").target
    assert target is not None
    perfect = summarize(dataset, build_predictions("classification", np.eye(2)[target], target))
    evaluation = add_baselines(perfect, dataset, "test")
    assert evaluation.baseline == "TF-IDF and logistic regression"
    assert evaluation.baselines[evaluation.baseline]["accuracy"] > 0.6


def test_evaluation_and_report_have_baseline_beside_each_metric(datasets: dict[str, Dataset]) -> None:
    dataset = datasets["diabetes"]
    target = read_samples(dataset, "test").target
    assert target is not None
    perfect = summarize(dataset, build_predictions("regression", target, target))
    evaluation = add_baselines(perfect, dataset, "test")
    assert evaluation.baseline == "ridge regression"
    assert evaluation.baselines["mean"]["rmse"] > evaluation.baselines["ridge regression"]["rmse"] > 0
    assert all(found.keys() >= evaluation.metrics.keys() for found in evaluation.baselines.values())
    page = render_evaluation(evaluation, None, {})
    assert "<th>mean</th><th>ridge regression</th>" in page
    assert f"<td>{evaluation.baselines['mean']['rmse']:.4f}</td>" in page
