"""Export, verification and evaluation with real networks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.evaluation.metrics import METRICS
from kfp_mindspore.formats.bundle import MODEL_FILE, VERIFIED_FILE, ModelBundle, VerifiedSamples, write_bundle
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.formats.dataset import Column, Dataset, write_dataset
from kfp_mindspore.mindir import GraphRunner, ModelRunner, evaluate_bundle, export_mindir, verify_bundle
from kfp_mindspore.mindir.verify import measure_difference
from kfp_mindspore.transform import Concatenate, OneHot, Pipeline, Rename, Step, TensorSpec
from kfp_mindspore.transform.declaration import declare

pytestmark = pytest.mark.mindspore


@pytest.fixture(autouse=True)
def _where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))


def test_signature_records_origin(models: Path) -> None:
    bundle = ModelBundle.open(models / "free")
    signature, dataset = bundle.signature, Dataset.open(models / "dataset")
    assert [spec.to_dict() for spec in signature.inputs] == [
        {"name": "image", "dtype": "float32", "shape": [-1, 1, 8, 8]}
    ]
    assert [spec.to_dict() for spec in signature.outputs] == [{"name": "output", "dtype": "float32", "shape": [-1, 10]}]
    assert signature.labels == dataset.labels
    assert signature.metadata["network"] == "small_networks:make_classifier"
    assert (signature.metadata["epoch"], signature.metadata["step"], signature.metadata["seed"]) == ("3", "99", "7")
    assert (signature.verified["samples"], signature.verified["dataset"]) == (64, "digits")
    assert signature.verified["max_abs_diff"] <= 1e-6
    assert signature.verified["sha256"] == dataset.digest
    test = read_samples(dataset, "test")
    samples = bundle.read_verified()
    np.testing.assert_array_equal(samples.inputs["image"], test.inputs["image"][:64])
    np.testing.assert_array_equal(samples.labels, test.target[:64])


# ---- declared preprocessing


def test_bundle_declares_raw_pixels_and_label(models: Path) -> None:
    bundle, dataset = ModelBundle.open(models / "raw"), Dataset.open(models / "dataset")
    assert bundle.signature.metadata["task"] == "classification"
    declaration = bundle.read_preprocessing()
    assert (declaration["inputs"], declaration["pre"]) == (
        dataset.preprocessing["inputs"],
        dataset.preprocessing["pre"],
    )
    assert declaration["post"] == [{"type": "Label", "labels": list(dataset.labels)}]
    samples, test = bundle.read_verified(), read_samples(dataset, "test", count=64)
    np.testing.assert_array_equal(samples.raw["image"], test.raw["image"])
    assert samples.raw["image"].max() == 16
    np.testing.assert_array_equal(samples.inputs["image"], test.inputs["image"])
    assert verify_bundle(bundle.path, outputs=True).max_abs_diff <= 1e-5


def test_raw_rows_in_labels_out(models: Path) -> None:
    test = read_samples(models / "dataset", "test")
    with ModelRunner(models / "raw") as runner, GraphRunner(models / "free", warm=()) as graph:
        assert [spec.name for spec in runner.outputs] == ["output", "label"]
        found = runner.predict(test.raw)
        np.testing.assert_array_equal(found["output"], graph.predict(test.inputs)["output"])
        with pytest.raises(UserError, match=r"input 'image': shape must be \(-1, 1, 8, 8\), got \(1, 8\)"):
            runner.predict({"image": np.ones((1, 8), np.float32)})
    correct = found["label"] == np.array([b"%d" % target for target in test.target], object)
    assert len(correct) > 300
    assert correct.mean() > 0.9


def test_checkpoint_preprocessing_has_precedence(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = shutil.copytree(models / "dataset", tmp_path / "other")
    described = json.loads((other / "dataset.json").read_text())
    described["preprocessing"]["pre"][0]["std"] = [8.0]
    (other / "dataset.json").write_text(json.dumps(described))
    bundle = export_mindir(models / "checkpoint", tmp_path / "model", dataset_dir=other)
    assert "declares another preprocessing than" in caplog.text
    assert bundle.read_preprocessing() == ModelBundle.open(models / "raw").read_preprocessing()
    np.testing.assert_array_equal(
        bundle.read_verified().inputs["image"], read_samples(models / "dataset", "test", count=64).inputs["image"]
    )


def test_inputs_of_dataset_are_matched_by_name(models: Path, tmp_path: Path) -> None:
    columns = (Column("index", "int32", ()), Column("measure", "float32", (3,)), Column("text", "bytes", ()))
    arrays = {
        "index": np.array([2, 5, 0, 1], np.int32),
        "measure": np.array([[1, 2, 3]] * 4, np.float32),
        "text": np.array([b"x", b"y", b"", b"zz"], object),
    }
    inputs = [TensorSpec(column.name, column.dtype, (-1, *column.shape)) for column in columns]
    steps = [
        OneHot(["x", "y"], column="text"),
        Concatenate(["text", "measure"], "both"),
        Rename("values", column="both"),
    ]

    def export(steps: list[Step]) -> ModelBundle:
        dataset = write_dataset(
            tmp_path / "data",
            name="table",
            task="none",
            columns=columns,
            splits={"test": arrays},
            preprocessing=declare(Pipeline(steps, inputs=inputs)),
        )
        return export_mindir(models / "pair_checkpoint", tmp_path / "model", dataset_dir=dataset.path)

    with pytest.raises(
        UserError, match=r"Pair: its inputs are values, index, the samples are both, index\n.*Rename steps"
    ):
        export(steps[:-1])
    bundle = export(steps)
    assert [spec.name for spec in bundle.signature.inputs] == ["values", "index"]
    with ModelRunner(bundle) as runner:
        assert [spec.name for spec in runner.inputs] == ["index", "measure", "text"]
        scaled, following = runner.predict(arrays).values()
    np.testing.assert_array_equal(scaled[:2], [[2, 0, 2, 4, 6], [0, 2, 2, 4, 6]])
    np.testing.assert_array_equal(following, arrays["index"] + 1)


def test_options_of_export(models: Path, tmp_path: Path) -> None:
    output = tmp_path / "a b é" / "model"
    bundle = export_mindir(
        models / "checkpoint",
        output,
        dataset_dir=models / "dataset",
        batch=5,
        network="small_networks:Classifier",
        network_arguments={"classes": 10},
        metadata={"author": "me", "epoch": "last"},
        sample_count=32,
        transform="none",
        statistics=False,
    )
    assert bundle.signature.inputs[0].shape == (5, 1, 8, 8)
    assert (bundle.signature.metadata["author"], bundle.signature.metadata["epoch"]) == ("me", "last")
    assert len(bundle.read_verified()) == 32
    assert verify_bundle(output, outputs=True).max_abs_diff == 0
    assert sorted(path.name for path in output.iterdir()) == [MODEL_FILE, "signature.json", VERIFIED_FILE]
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"network": "small_networks:Broken"},
            KfpMindSporeError,
            r"Broken: layer dense \(Dense\) cannot be exported .*-1, 1, 8, 8",
        ),
        (
            {"network": "small_networks:Noisy"},
            KfpMindSporeError,
            "must compute what the network does within .*e-05, differs by inf",
        ),
        ({"network": "small_networks:Summed"}, UserError, "outputs must have one row a sample"),
        ({"network": "small_networks:nope"}, UserError, "small_networks has no callable 'nope'"),
        ({"network": "nowhere.net:make"}, UserError, "no module 'nowhere' in"),
        ({"network": "make"}, UserError, "must be 'module:callable', got 'make'"),
        (
            {"network": "small_networks:make_nothing", "network_arguments": {}},
            UserError,
            "must return a mindspore.nn.Cell, got NoneType",
        ),
        ({"network_arguments": {"depth": 3}}, UserError, "cannot be built with arguments {'depth': 3}"),
        ({"network_arguments": {"classes": 9}}, UserError, "network.ckpt does not fit the network"),
        ({"network": "small_networks:Pair", "network_arguments": {}}, UserError, "no value for scale"),
        ({"batch": 0}, UserError, "batch: must be 'free' or a number of at least 1, got 0"),
        ({"batch": "some"}, UserError, "batch: must be 'free' or a number of at least 1, got 'some'"),
        ({"sample_count": 0}, UserError, "sample_count: must be an integer ≥ 1, got 0"),
        ({"dataset_dir": None}, UserError, "needs real inputs"),
        ({"dataset_dir": "nowhere"}, NotFoundError, "nowhere: no such dataset directory"),
        ({"samples": {"picture": np.ones((3, 1, 8, 8), np.float32)}}, UserError, "takes image, got picture"),
        ({"metadata": {"labels": "cat, dog"}}, UserError, "metadata: labels: must be a JSON list of class names"),
        ({"metadata": {"labels": "3"}}, UserError, "metadata: labels: must be a JSON list of class names"),
        ({"metadata": {"dimensions": "{}"}}, UserError, "metadata: dimensions: is reserved for export"),
        ({"samples": {}}, UserError, "samples: must be arrays of the same number of rows"),
    ],
)
def test_failed_export_keeps_existing_bundle(
    models: Path, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    import mindspore

    target = tmp_path / "out" / "model"
    shutil.copytree(models / "fixed", target)
    before = ModelBundle.open(target).signature
    with pytest.raises(error, match=message):
        export_mindir(models / "checkpoint", target, **{"dataset_dir": models / "dataset", **options})
    assert ModelBundle.open(target).signature == before
    assert [path.name for path in target.parent.iterdir()] == ["model"]
    assert list(Path.cwd().iterdir()) == []
    assert mindspore.get_context("jit_syntax_level") == mindspore.LAX


def test_checkpoint_without_factory_needs_network(models: Path, tmp_path: Path) -> None:
    import small_networks

    with write_checkpoint(tmp_path / "checkpoint", epoch=1, step=1, seed=1, network=NetworkSpec("")) as directory:
        shutil.copy(models / "checkpoint" / "network.ckpt", directory)
    with pytest.raises(UserError, match="does not record how the network is built"):
        export_mindir(tmp_path / "checkpoint", tmp_path / "model", dataset_dir=models / "dataset")
    bundle = export_mindir(
        tmp_path / "checkpoint",
        tmp_path / "model",
        network=small_networks.make_classifier(),
        samples=read_samples(models / "dataset", "test", count=3).inputs["image"],
    )
    assert (len(bundle.read_verified()), bundle.read_verified().labels, bundle.signature.labels) == (3, None, ())


def test_error_names_missing_checkpoint(models: Path, tmp_path: Path) -> None:
    with pytest.raises(
        NotFoundError, match="nowhere: no such checkpoint directory or file\nName a checkpoint's directory"
    ):
        export_mindir(tmp_path / "nowhere", tmp_path / "model", dataset_dir=models / "dataset")


@pytest.mark.parametrize(
    ("transform", "message"),
    [("absent.py", "absent.py: no such transform file"), ("absent", "transform 'absent': not registered")],
)
def test_missing_transform_is_refused_before_export(tmp_path: Path, transform: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        export_mindir(tmp_path / "nowhere", tmp_path / "model", transform=transform)


def test_verification_detects_different_outputs(models: Path, tmp_path: Path) -> None:
    bundle = ModelBundle.open(models / "free")
    samples = bundle.read_verified()
    with write_bundle(tmp_path / "other") as writer:
        shutil.copy(bundle.mindir, writer.directory)
        moved = {"output": samples.outputs["output"] + np.float32(0.01)}
        writer.write_verified(VerifiedSamples(samples.inputs, moved, samples.labels))
        writer.sign(bundle.signature)
    assert verify_bundle(tmp_path / "other").samples == 0
    with pytest.raises(KfpMindSporeError, match=r"must be within 1e-05 of the network.s, differ by 0\.0"):
        verify_bundle(tmp_path / "other", outputs=True)
    assert verify_bundle(tmp_path / "other", outputs=True, tolerance=0.1).samples == 64


def test_verification_detects_flipped_bit(models: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(models / "free", tmp_path / "model"))
    content = bytearray((damaged / VERIFIED_FILE).read_bytes())
    content[-1] ^= 128
    (damaged / VERIFIED_FILE).write_bytes(content)
    with pytest.raises(CorruptBundleError, match=r"verified\.npz"):
        verify_bundle(damaged)


@pytest.mark.parametrize("kind", ["free", "fixed"])
def test_evaluation(models: Path, kind: str) -> None:
    result = evaluate_bundle(models / kind, models / "dataset")
    labels = read_samples(models / "dataset", "test").target
    assert result.count == len(labels) == 360
    assert 0.9 < result.value == result.metrics["accuracy"] < 1
    assert result.value == pytest.approx(np.mean(result.predictions.values == labels))
    assert result.labels == tuple("0123456789")
    assert result.to_dict()["metrics"].keys() == {name for name, it in METRICS.items() if result.task in it.tasks}


def test_evaluation_needs_inputs_of_model(models: Path) -> None:
    with pytest.raises(UserError, match=r"pair: needs the inputs .*, the dataset has image"):
        evaluate_bundle(models / "pair", models / "dataset")


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], 0.0),
        ([np.nan], [1.0], np.inf),
        ([np.inf], [-np.inf], np.inf),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_measure_difference(expected: list[float], found: list[float], difference: float) -> None:
    arrays = ({"y": np.array(values, np.float32)} for values in (expected, found))
    assert measure_difference(*arrays) == difference
