"""Evaluation of real graphs by task: several inputs, numbers, ranks and tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.formats.dataset import Column, write_dataset
from kfp_mindspore.mindir import evaluate_bundle, export_mindir, verify_bundle
from kfp_mindspore.mindir.evaluate import predict_task, summarize
from kfp_mindspore.steps.deployment.predict import predict_batch
from kfp_mindspore.steps.evaluation.reports import render_evaluation
from kfp_mindspore.testing import make_once
from kfp_mindspore.transform import DecodeImage, Resize
from tests.support.models.data_sources import write_source

pytestmark = pytest.mark.mindspore

GENERATOR = np.random.default_rng(0)
COUNT = 300  # more than one part of a language model
CITIES = GENERATOR.normal(size=4).astype(np.float32)
BIGRAMS = GENERATOR.normal(size=(5, 5)).astype(np.float32)
NUMBERS = GENERATOR.normal(size=(COUNT, 2)).astype(np.float32)
CITY = GENERATOR.integers(4, size=COUNT).astype(np.int32)
NOISE = GENERATOR.normal(size=COUNT).astype(np.float32)
TOKENS = GENERATOR.integers(5, size=(COUNT, 7)).astype(np.int32)


def _write(root: Path, name: str, task: str, target: np.ndarray, features: dict[str, Any], **ids: np.ndarray) -> None:
    arrays = {**features, "y": target, **ids}
    roles = {"y": "target", **dict.fromkeys(ids, "id")}
    columns = [
        Column(key, array.dtype.name, array.shape[1:], roles.get(key, "feature")) for key, array in arrays.items()
    ]
    write_dataset(root / name, name=name, task=task, columns=columns, splits={"test": arrays})


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Datasets `prices`, `ranks` and `texts`, and the bundles `price` and `text` with known parameters."""

    def make(root: Path) -> None:
        prices = NUMBERS.sum(axis=1) + CITIES[CITY] + NOISE
        features = {"numbers": NUMBERS, "city": CITY}
        _write(root, "prices", "regression", prices, features)
        _write(root, "ranks", "ranking", (prices > 0).astype(np.float32), features, group=np.arange(COUNT) // 10)
        _write(root, "texts", "language_model", TOKENS[:, 1:], {"ids": TOKENS[:, :-1]})
        import mindspore
        from mindspore import nn

        class Price(nn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.cities = nn.Embedding(4, 1)
                self.cities.embedding_table.set_data(mindspore.Tensor(CITIES[:, None]))

            def construct(self, numbers, city):
                return {"price": numbers.sum(axis=1, keepdims=True) + self.cities(city)}

        class Bigrams(nn.Cell):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(5, 5)
                self.table.embedding_table.set_data(mindspore.Tensor(BIGRAMS))

            def construct(self, ids):
                return self.table(ids)

        checkpoint = root / "checkpoint"
        for name, network, dataset in (("price", Price(), "prices"), ("text", Bigrams(), "texts")):
            with write_checkpoint(checkpoint, epoch=1, step=1, seed=1, network=NetworkSpec(name)) as directory:
                mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
            export_mindir(checkpoint, root / name, dataset_dir=root / dataset, network=network)

    return make_once(tmp_path_factory, "trained", make)


def test_outputs_have_names_of_network(trained: Path) -> None:
    assert [spec.name for spec in ModelBundle.open(trained / "price").signature.outputs] == ["price"]
    assert [spec.name for spec in ModelBundle.open(trained / "text").signature.outputs] == ["output"]


def test_regression_of_two_inputs(trained: Path) -> None:
    found = evaluate_bundle(trained / "price", trained / "prices", metric="mae")
    assert (found.metric, found.count, found.labels) == ("mae", COUNT, ())
    assert found.value == pytest.approx(np.abs(NOISE).mean(), rel=1e-5)
    assert found.metrics["rmse"] == pytest.approx(np.sqrt(np.square(NOISE).mean()), rel=1e-5)
    np.testing.assert_allclose(found.predictions.losses, np.square(NOISE), atol=1e-4)
    assert json.loads(json.dumps(found.to_dict()))["metrics"].keys() == {"mae", "rmse", "r2"}


def test_language_model_in_parts(trained: Path) -> None:
    found = evaluate_bundle(trained / "text", trained / "texts")
    logs = BIGRAMS - np.log(np.exp(BIGRAMS).sum(axis=1, keepdims=True))
    losses = -logs[TOKENS[:, :-1], TOKENS[:, 1:]]
    assert (found.metric, found.count) == ("perplexity", COUNT)
    assert found.value == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    np.testing.assert_allclose(found.predictions.losses, losses.mean(axis=1), rtol=1e-4)


def test_padding_of_texts_is_not_counted(tmp_path: Path) -> None:
    target = np.array([[2, 1, 0]], np.int32)
    columns = (Column("ids", "int32", (3,)), Column("y", "int32", (3,), "target"))
    arrays = {"ids": target, "y": target}
    labels = ("", "?", "a")
    dataset = write_dataset(
        tmp_path / "d", name="d", task="language_model", columns=columns, splits={"test": arrays}, labels=labels
    )
    scores = np.eye(3)[[[2, 1, 1]]]
    found = summarize(dataset, predict_task(dataset, read_samples(dataset, "test"), scores, subject="model"))
    assert (found.value, found.metrics["accuracy"], found.labels) == (pytest.approx(1), 1, labels)
    page = render_evaluation(found, None, {})
    assert '<td class="text free">a?</td><td class="text free">a??</td>' in page


def test_bundle_keeps_targets_for_canary(trained: Path) -> None:
    assert ModelBundle.open(trained / "price").read_verified().labels.dtype == np.float32
    np.testing.assert_array_equal(ModelBundle.open(trained / "text").read_verified().labels, TOKENS[:64, 1:])


def test_ranking_by_groups(trained: Path) -> None:
    found = evaluate_bundle(trained / "price", trained / "ranks", metric="ndcg@3")
    assert 0.8 < found.metrics["roc_auc"] < 1
    assert 0.8 < found.value <= 1
    assert found.predictions.groups is not None


def test_images_are_decoded_in_parts(tmp_path: Path) -> None:
    import mindspore

    from tests.support.models.small_networks import Classifier

    # All images of the test split exceed the limit of a request: 12 · 30 pixels, 4 · 64 are allowed.
    steps = [DecodeImage("L", max_pixels=64), Resize((8, 8))]
    source = write_source("images", tmp_path)
    first, other = (load_dataset(source, tmp_path / f"{seed}", seed=seed, preprocessing=steps) for seed in (1, 2))
    network = Classifier(2)
    with write_checkpoint(
        tmp_path / "checkpoint", epoch=1, step=1, seed=1, network=NetworkSpec("c"), preprocessing=first.preprocessing
    ) as directory:
        mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
    bundle = export_mindir(tmp_path / "checkpoint", tmp_path / "model", dataset_dir=first.path, network=network)
    samples = read_samples(other, "test")
    scores = samples.inputs["image"].reshape(-1, 64) @ network.dense.weight.asnumpy().T + network.dense.bias.asnumpy()
    found = evaluate_bundle(bundle.path, other.path)
    assert found.count == len(samples) == 12
    np.testing.assert_array_equal(found.predictions.values, scores.argmax(axis=1))
    assert verify_bundle(bundle.path, outputs=True).max_abs_diff <= 1e-5


@pytest.mark.parametrize(
    ("bundle", "dataset", "metric", "message"),
    [
        ("text", "prices", "", r"text: needs the inputs ids, the dataset has numbers, city"),
        ("price", "prices", "accuracy", "metric accuracy: is for classification.*expected mae, rmse, r2"),
        ("price", "absent", "", "no such dataset directory"),
    ],
)
def test_bundle_that_does_not_fit_is_refused(
    trained: Path, bundle: str, dataset: str, metric: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        evaluate_bundle(trained / bundle, trained / dataset, metric=metric)


@pytest.mark.parametrize(
    ("bundle", "dataset", "expected"),
    [
        ("price", "prices", (NUMBERS.sum(axis=1) + CITIES[CITY])[1::2]),
        ("text", "texts", BIGRAMS.argmax(axis=1)[TOKENS[1::2, :-1]]),
    ],
)
def test_batch_predictions_by_task(trained: Path, tmp_path: Path, bundle: str, dataset: str, expected) -> None:
    predictions = dsl.Dataset(uri=str(tmp_path / "predictions"), metadata={})
    models, data = dsl.Model(uri=str(trained / bundle)), dsl.Dataset(uri=str(trained / dataset))
    assert predict_batch(models, data, predictions, shard="2/2") == COUNT // 2
    rows = [json.loads(line) for line in (tmp_path / "predictions").read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(1, COUNT, 2))
    np.testing.assert_allclose([row["prediction"] for row in rows], expected, rtol=1e-4)
