"""Bundles: round trip, digests of every byte, atomic writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import (
    MODEL_FILE,
    SIGNATURE_FILE,
    VERIFIED_FILE,
    ModelBundle,
    Signature,
    TensorSpec,
    VerifiedSamples,
    write_bundle,
)

SIGNATURE = Signature(
    inputs=(TensorSpec("image", "float32", (-1, 1, 2, 2)),),
    outputs=(TensorSpec("output", "float32", (-1, 3)),),
    mindspore_version="2.9.0",
    verified={"samples": 4, "max_abs_diff": 1e-7},
    metadata={"labels": '["a", "b", "c"]', "author": "Zoë"},
)
SAMPLES = VerifiedSamples(
    inputs={"image": np.arange(16, dtype=np.float32).reshape(4, 1, 2, 2)},
    outputs={"output": np.ones((4, 3), np.float32)},
    labels=np.array([0, 1, 2, 0], np.int32),
    weight=np.array([1, 0, 2, 3], np.float32),
    groups=np.array([5, 5, 6, 6]),
)


def write(path: Path, model: bytes = b"graph and weights") -> ModelBundle:
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(model)
        writer.write_verified(SAMPLES)
        writer.sign(SIGNATURE)
    return ModelBundle.open(path)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    return write(tmp_path_factory.mktemp("bundle") / "model")


@settings(max_examples=30, deadline=None)
@given(texts=st.lists(st.binary(max_size=9), min_size=1, max_size=6))
def test_raw_samples_and_preprocessing_round_trip(tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]) -> None:
    rows = np.array([*texts, None], object)[:-1]
    raw = {"text": rows, "file.bytes": rows[::-1], "age": np.arange(len(texts))}
    declaration = {
        "inputs": [{"name": name, "dtype": "bytes", "shape": [-1]} for name in raw],
        "pre": [{"type": "Cast", "dtype": "float32", "column": "é"}],
    }
    path = tmp_path_factory.mktemp("raw") / "model"
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(b"graph")
        writer.write_verified(VerifiedSamples(SAMPLES.inputs, SAMPLES.outputs, None, raw))
        writer.write_preprocessing(declaration)
        writer.sign(SIGNATURE)
    found = ModelBundle.open(path)
    assert found.read_preprocessing() == declaration
    read = found.read_verified().raw
    assert set(read) == set(raw)
    for name, array in raw.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)


def test_round_trip(bundle: ModelBundle) -> None:
    signature = bundle.signature
    assert (signature.inputs, signature.outputs) == (SIGNATURE.inputs, SIGNATURE.outputs)
    assert signature.labels == ("a", "b", "c")
    assert signature.metadata["author"] == "Zoë"
    assert sorted(signature.files) == [MODEL_FILE, VERIFIED_FILE]
    assert Signature.from_dict(signature.to_dict()) == signature
    assert (bundle.read_preprocessing(), bundle.read_verified().raw) == ({}, {})
    samples = bundle.read_verified()
    assert len(samples) == 4
    np.testing.assert_array_equal(samples.inputs["image"], SAMPLES.inputs["image"])
    for name in ("labels", "weight", "groups"):
        np.testing.assert_array_equal(getattr(samples, name), getattr(SAMPLES, name))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_detected(bundle: ModelBundle, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([MODEL_FILE, VERIFIED_FILE, SIGNATURE_FILE]))
    file = bundle.path / name
    content = file.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    flipped = bytes([content[position] ^ (1 << data.draw(st.integers(0, 7)))])
    try:
        file.write_bytes(content[:position] + flipped + content[position + 1 :])
        with pytest.raises(CorruptBundleError, match=name):
            ModelBundle.open(bundle.path)
    finally:
        file.write_bytes(content)


def test_verify_detects_change_after_opening(tmp_path: Path) -> None:
    bundle = write(tmp_path / "model")
    bundle.mindir.write_bytes(b"GRAPH and weights")
    assert ModelBundle.open(bundle.path, verify=False)
    with pytest.raises(CorruptBundleError, match="sha256 must be"):
        bundle.verify()


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda path: shutil.rmtree(path), NotFoundError, "no such model directory"),
        (lambda path: [file.unlink() for file in path.iterdir()], UserError, "an empty directory: signature.json and"),
        (lambda path: (path / SIGNATURE_FILE).unlink(), UserError, "no model bundle: signature.json missing"),
        (lambda path: (path / MODEL_FILE).unlink(), UserError, "model.mindir missing"),
        (lambda path: (path / VERIFIED_FILE).unlink(), UserError, "verified.npz missing, named by signature.json"),
        (lambda path: (path / MODEL_FILE).write_bytes(b""), CorruptBundleError, "must have 17 bytes, has 0"),
        (lambda path: (path / SIGNATURE_FILE).write_text("{}"), CorruptBundleError, "signature.json"),
        (lambda path: (path / SIGNATURE_FILE).write_text("[1, "), CorruptBundleError, "signature.json"),
    ],
)
def test_error_names_missing_or_damaged_file(
    tmp_path: Path, damage: object, error: type[UserError], message: str
) -> None:
    path = write(tmp_path / "model").path
    assert callable(damage)
    damage(path)
    with pytest.raises(error, match=message) as caught:
        ModelBundle.open(path)
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_file_instead_of_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "model.mindir").write_bytes(b"x")
    with pytest.raises(UserError, match="a file, where a model directory is needed"):
        ModelBundle.open(tmp_path / "model.mindir")


def test_failed_write_keeps_old_bundle_and_no_temporary_files(tmp_path: Path) -> None:
    old = write(tmp_path / "model")

    def fail() -> None:
        with write_bundle(old.path) as writer:
            (writer.directory / MODEL_FILE).write_bytes(b"half")
            raise RuntimeError("export failed")

    with pytest.raises(RuntimeError, match="export failed"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert ModelBundle.open(old.path).signature == old.signature


def test_full_disk_is_user_error(tmp_path: Path) -> None:
    def fill() -> None:
        with write_bundle(tmp_path / "model"):
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"model: the model bundle cannot be written \(No space left on device\)"):
        fill()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("float32", (5, 1, 8, 8), ""),
        ("float64", (5, 1, 8, 8), "dtype must be float32, got float64"),
        ("float32", (3, 8, 8), "shape must be (-1, 1, 8, 8), got (3, 8, 8)"),
        ("float32", (5, 1, 8, 9), "shape must be (-1, 1, 8, 8), got (5, 1, 8, 9)"),
        ("float32", (0, 1, 8, 8), "shape must be (-1, 1, 8, 8), got (0, 1, 8, 8)"),
        ("float32", (), "shape must be (-1, 1, 8, 8), got ()"),
    ],
)
def test_mismatches_name_expected_and_found(dtype: str, shape: tuple[int, ...], message: str) -> None:
    assert TensorSpec("image", "float32", (-1, 1, 8, 8)).describe_mismatch(dtype, shape) == message


def test_signature_is_readable_json(bundle: ModelBundle) -> None:
    value = json.loads((bundle.path / SIGNATURE_FILE).read_text())
    assert value["inputs"] == [{"name": "image", "dtype": "float32", "shape": [-1, 1, 2, 2]}]
    assert value["version"] == 1


@pytest.mark.parametrize(
    ("values", "tolerance"), [([0.5, -0.25], 1e-5), ([150.0, -300.0], 3e-3), ([np.nan, np.inf, 20.0], 2e-4), ([], 1e-5)]
)
def test_tolerance_is_in_proportion_to_largest_output(values: list[float], tolerance: float) -> None:
    outputs = {"output": np.array(values, np.float32), "label": np.array([b"cat"] * len(values), object)}
    assert VerifiedSamples({}, outputs, None).scale_tolerance(1e-5) == pytest.approx(tolerance)
