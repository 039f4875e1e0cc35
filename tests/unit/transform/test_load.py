"""Loading of transforms: permission, isolation of modules, and errors with file and line."""

from __future__ import annotations

import gc
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import (
    MODEL_FILE,
    PREPROCESSING_FILE,
    TRANSFORM_FILE,
    ModelBundle,
    Signature,
    TensorSpec,
    VerifiedSamples,
    write_bundle,
)
from kfp_mindspore.formats.example_request import ExampleRequest
from kfp_mindspore.transform import Arrays, Label, Normalize, Pipeline
from kfp_mindspore.transform.base import TransformFailedError
from kfp_mindspore.transform.declaration import declare
from kfp_mindspore.transform.export import try_transform
from kfp_mindspore.transform.load import load_transform, load_transform_source, read_transform

SIGNATURE = Signature(
    (TensorSpec("x", "float32", (-1, 2)),),
    (TensorSpec("output", "float32", (-1, 3)),),
    "2.9.0",
    metadata={"labels": '["a", "b", "c"]'},
)
X = np.array([[1, 2]], np.float32)
SAMPLES = VerifiedSamples({"x": X}, {"output": np.array([[1, 3, 2]], np.float32)}, None)

ADD = """
from dataclasses import dataclass

from kfp_mindspore.transform import Arrays, Transform

AMOUNT = {amount}


@dataclass
class Add(Transform):
    amount: float

    def preprocess(self, inputs: Arrays) -> Arrays:
        return {{"x": inputs["x"] + AMOUNT}}


transform = Add(AMOUNT)
"""


def write(path: Path, source: str | None = None, **metadata: str) -> ModelBundle:
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(b"graph")
        if source is not None:
            (writer.directory / TRANSFORM_FILE).write_text(source)
        writer.sign(
            Signature(SIGNATURE.inputs, SIGNATURE.outputs, "2.9.0", metadata={**SIGNATURE.metadata, **metadata})
        )
    return ModelBundle.open(path)


def load(path: Path, source: str) -> Any:
    return load_transform(write(path, source), allow_code=True)


def test_model_without_transform(tmp_path: Path) -> None:
    assert load_transform(write(tmp_path / "model")) is None


# ---- declared preprocessing

DECLARATION = declare(
    Pipeline([Normalize(0, 2)], [Label(["a", "b", "c"])], inputs=[TensorSpec("x", "float32", (-1, 2))])
)


def declare_model(path: Path, declaration: dict[str, Any], source: str | None = None, **metadata: str) -> ModelBundle:
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(b"graph")
        if source is not None:
            (writer.directory / TRANSFORM_FILE).write_text(source)
        writer.write_preprocessing(declaration)
        writer.sign(Signature(SIGNATURE.inputs, SIGNATURE.outputs, "2.9.0", metadata=metadata))
    return ModelBundle.open(path)


def test_declared_preprocessing_needs_no_permission(tmp_path: Path) -> None:
    bound = load_transform(declare_model(tmp_path / "model", DECLARATION))
    assert bound is not None
    np.testing.assert_array_equal(bound.run_preprocess({"x": X})["x"], X / 2)
    outputs = bound.run_postprocess({"output": np.array([[1, 3, 2]], np.float32)})
    assert (outputs["label"].tolist(), bound.name) == ([b"b"], "model/preprocessing.json")


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda path: declare_model(path, {"pre": [{"type": "Execute"}]}),
            UserError,
            r"preprocessing.json: preprocessing: pre\[0\]: type: must be one of .*, got 'Execute'",
        ),
        (
            lambda path: declare_model(path, {"inputs": [{"name": "x", "dtype": "int64", "shape": [-1, 2]}]}),
            UserError,
            "inputs: differ from the model's, but there is no preprocessing",
        ),
        (
            lambda path: declare_model(path, DECLARATION, "transform = None"),
            UserError,
            r"has preprocessing.json and transform.py: must be one of them",
        ),
        (
            lambda path: declare_model(path, DECLARATION, transform="acme"),
            UserError,
            r"has preprocessing.json and names the transform 'acme': must be one of them",
        ),
    ],
)
def test_invalid_declared_preprocessing(tmp_path: Path, make: Any, kind: type[UserError], message: str) -> None:
    with pytest.raises(kind, match=message):
        load_transform(make(tmp_path / "model"), allow_code=True)


def test_changed_or_added_declaration_is_refused(tmp_path: Path) -> None:
    bundle = declare_model(tmp_path / "model", DECLARATION)
    file = bundle.path / PREPROCESSING_FILE
    file.write_text(file.read_text().replace("2.0", "4.0"))
    with pytest.raises(CorruptBundleError, match=r"preprocessing.json: sha256 must be .*: the file was changed"):
        load_transform(bundle)
    plain = write(tmp_path / "plain")
    shutil.copy(file, plain.path)
    with pytest.raises(CorruptBundleError, match=r"preprocessing.json: not among the files of the model's signature"):
        load_transform(plain)


# ---- code


def test_code_needs_permission(tmp_path: Path) -> None:
    bundle = write(tmp_path / "model", "raise SystemExit('it ran')")
    with pytest.raises(UserError, match=r"model/transform.py: .* not allowed\n.*--allow_model_code true"):
        load_transform(bundle)


def test_unsigned_code_is_rejected(tmp_path: Path) -> None:
    bundle = write(tmp_path / "model")
    (bundle.path / TRANSFORM_FILE).write_text("raise SystemExit('it ran')")
    with pytest.raises(CorruptBundleError, match=r"transform.py: not among the files of the model's signature"):
        load_transform(bundle, allow_code=True)


def test_changed_code_is_rejected(tmp_path: Path) -> None:
    bundle = write(tmp_path / "model", ADD.format(amount=1))
    (bundle.path / TRANSFORM_FILE).write_text(ADD.format(amount=2))
    with pytest.raises(CorruptBundleError, match=r"transform.py: sha256 must be"):
        load_transform(bundle, allow_code=True)


def test_each_load_has_module_of_its_own(tmp_path: Path) -> None:
    first, second = (load(tmp_path / str(amount), ADD.format(amount=amount)) for amount in (1, 2))
    again = load(tmp_path / "1", ADD.format(amount=1))
    modules = [type(bound.transform).__module__ for bound in (first, second, again)]
    assert len(set(modules)) == 3
    assert [bound.run_preprocess({"x": X})["x"].tolist() for bound in (first, second, again)] == [
        [[2, 3]],
        [[3, 4]],
        [[2, 3]],
    ]
    assert set(modules) <= set(sys.modules)
    # Unloaded models leave no module.
    del first, second, again
    gc.collect()
    assert not set(modules) & set(sys.modules)


def test_replaced_model_has_new_code(tmp_path: Path) -> None:
    old = load(tmp_path / "model", ADD.format(amount=1))
    new = load(tmp_path / "model", ADD.format(amount=5))
    assert new.run_preprocess({"x": X})["x"].tolist() == [[6, 7]]
    assert old.run_preprocess({"x": X})["x"].tolist() == [[2, 3]]
    assert not (tmp_path / "model" / "__pycache__").exists()


def test_build_transform_receives_signature(tmp_path: Path) -> None:
    source = """
from kfp_mindspore.transform import Pipeline, TopK

def build_transform(signature):
    return Pipeline(post=[TopK(2, signature.labels)])
"""
    bound = load(tmp_path / "model", source)
    assert (bound.name, bound.preprocesses) == ("model/transform.py", False)
    assert bound.run_postprocess(SAMPLES.outputs)["classes"].tolist() == [[b"b", b"c"]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "x = 1\nimport nowhere.at_all\n",
            r"transform.py:2: ModuleNotFoundError: No module named 'nowhere'\nInstall it",
        ),
        ("x = 1\n\ny = 1 / 0\n", r"transform.py:3: ZeroDivisionError: division by zero"),
        ("x = 1\n  y = 2\n", r"transform.py:2: IndentationError: unexpected indent"),
        ("def f(:\n", r"transform.py:1: SyntaxError: "),
        ("x = '\0'\n", r"transform.py.*: (SyntaxError|ValueError): source code"),
        ("# coding: nothing\n", r"transform.py.*SyntaxError: .*nothing"),
        ("import sys\nsys.exit(3)\n", r"transform.py:2: SystemExit: 3"),
        ("import json\njson.loads('{')\n", r"transform.py:2: JSONDecodeError"),
        ("", r"transform.py: must define `transform` or `build_transform\(signature\)`, and not both"),
        (ADD.format(amount=1) + "build_transform = Add\n", "must define .* and not both"),
        ("transform = 3\n", r"transform.py: must define a kfp_mindspore.transform.Transform, .*got int"),
        ("build_transform = 3\n", r"transform.py: build_transform: must be a function, got int"),
        ("def build_transform(signature):\n    return None\n", "must define a .*, got NoneType"),
        ("def build_transform(signature):\n    return signature.nothing\n", "transform.py:2: AttributeError"),
        (
            "from kfp_mindspore.transform import *\ntransform = Pipeline([\n    Resize((0, 1))])\n",
            r"transform.py:3: Resize: size: must be \(height, width\)",
        ),
        (
            "from kfp_mindspore.transform import *\ntransform = Pipeline([Resize((1, 1))])\n",
            r"model/transform.py: inputs: Resize: gives images of 1 x 1, but 'x' must have shape \(-1, 2\)",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, source: str, message: str) -> None:
    before = set(sys.modules)
    with pytest.raises(UserError, match=message):
        load(tmp_path / "model", source)
    assert not {name for name in set(sys.modules) - before if name.startswith("kfp_mindspore_transform")}


# ---- registered transforms


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that registers transforms."""
    site = tmp_path / "site"
    information = site / "acme_transforms-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-transforms\nVersion: 1.0\n")
    names = {"object": "transform", "class": "Three", "function": "build", "absent": "absent", "number": "NUMBER"}
    lines = [f"{name} = acme_transforms:{attribute}" for name, attribute in names.items()]
    (information / "entry_points.txt").write_text("\n".join(["[kfp_mindspore.transforms]", *lines, ""]))
    source = (
        ADD.format(amount=1)
        + "class Three(Add):\n    def __init__(self): pass\ndef build(_): return Three()\nNUMBER = 3\n"
    )
    (site / "acme_transforms.py").write_text(source)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "acme_transforms", raising=False)
    return site


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("name", ["object", "class", "function"])
def test_registered_transform_needs_no_permission(tmp_path: Path, name: str) -> None:
    bound = load_transform(write(tmp_path / "model", transform=name))
    assert bound is not None
    assert bound.name == f"transform {name!r}"
    assert bound.run_preprocess({"x": X})["x"].tolist() == [[2, 3]]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nobody's", NotFoundError, "not registered, found absent, class, function, number, object"),
        ("absent", UserError, r"transform 'absent' \(acme_transforms:absent\): AttributeError"),
        ("number", UserError, "transform 'number': must define a .*, got int"),
    ],
)
def test_invalid_registered_names(tmp_path: Path, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_transform(write(tmp_path / "model", transform=name))


def test_file_and_registered_name_exclude_each_other(tmp_path: Path) -> None:
    bundle = write(tmp_path / "model", ADD.format(amount=1), transform="object")
    with pytest.raises(UserError, match="names the transform 'object': must be one of them"):
        load_transform(bundle, allow_code=True)


# ---- validation at export


def compute(arrays: Arrays) -> Arrays:
    return {"output": np.pad(arrays["x"], ((0, 0), (0, 1)))}


def export(transform: Path | str) -> ExampleRequest | None:
    bound, source = read_transform(transform, SIGNATURE)
    return try_transform(bound, SAMPLES, compute, Path(transform) if source else None)


def test_export_runs_example(tmp_path: Path, package: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ADD.format(amount=1))
    for transform, source in ((file, file.read_bytes()), ("object", b"")):
        bound, found = read_transform(transform, SIGNATURE)
        assert found == source
        example = try_transform(bound, SAMPLES, compute)
        assert example is not None
        assert example.inputs["x"].tolist() == [[1, 2]]
        assert example.outputs["output"].tolist() == [[2, 3, 0]]
        again = ExampleRequest.decode(example.encode())
        np.testing.assert_array_equal(again.outputs["output"], example.outputs["output"])
    shutil.rmtree(package)


METHOD = "from kfp_mindspore.transform import *\nclass T(Transform):\n{body}\ntransform = T()\n"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("  def preprocess(self, inputs):\n    return inputs['y']", r"mine.py:4: KeyError: 'y' \(.*preprocess failed"),
        ("  def preprocess(self, inputs):\n    return {}", "its result does not fit the model: 'x': missing"),
        ("  def postprocess(self, outputs):\n    raise ValueError", r"mine.py:4: ValueError \(.*postprocess failed"),
        ("  def postprocess(self, outputs):\n    raise TransformInputError('no')", "mine.py: refuses an example: no"),
        ("  def postprocess(self, outputs):\n    return {'a': 1}", "must return NumPy arrays by name, got 'a': int"),
        (
            "  inputs = (TensorSpec('t', BYTES, (-1,)),)\n  def preprocess(self, inputs):\n    return inputs\n"
            "  def make_example(self, signature):\n    return 1 / 0",
            "mine.py: make_example failed: ZeroDivisionError",
        ),
    ],
)
def test_export_rejects_failing_transforms(tmp_path: Path, body: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(METHOD.format(body=body))
    with pytest.raises(UserError, match=message):
        export(file)


def test_without_example_only_postprocess_is_validated(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    body = "  inputs = (TensorSpec('t', BYTES, (-1,)),)\n  def preprocess(self, inputs):\n    return 1 / 0"
    file.write_text(METHOD.format(body=body))
    assert export(file) is None


def test_example_round_trip() -> None:
    texts = np.array([[b"\x00\xff", b"n\xc3\xa9"]], object)
    numbers = {"half": np.array([0.1, np.inf], np.float16), "big": np.array([2**63 - 1]), "none": np.zeros((0, 2))}
    example = ExampleRequest.decode(ExampleRequest({"t": texts}, numbers).encode())
    assert example.inputs["t"].tolist() == texts.tolist()
    for name, array in numbers.items():
        np.testing.assert_array_equal(example.outputs[name], array)
        assert example.outputs[name].dtype == array.dtype


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"inputs": 3, "outputs": {}}', b'{"inputs": {"x": {}}}'])
def test_invalid_examples(content: bytes) -> None:
    with pytest.raises(ValueError):
        ExampleRequest.decode(content)


@pytest.mark.parametrize(
    ("transform", "message"),
    [("nowhere.py", "nowhere.py: no such transform file"), ("nobody", "transform 'nobody': not registered")],
)
def test_export_names_missing_part(tmp_path: Path, transform: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        export(transform)


def test_directory_is_no_transform(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(UserError, match=r"folder.py: transform: Is a directory"):
        export(tmp_path / "folder.py")


def test_message_for_client_contains_no_details(tmp_path: Path) -> None:
    source = METHOD.format(body="  def preprocess(self, inputs):\n    return open('/a/secret/path')")
    bound = load_transform_source(tmp_path / "transform.py", source.encode(), SIGNATURE)
    with pytest.raises(TransformFailedError) as raised:
        bound.run_preprocess({"x": X})
    assert str(raised.value) == f"{tmp_path.name}/transform.py: preprocess failed with FileNotFoundError"
    assert "secret" in str(raised.value.__cause__)
