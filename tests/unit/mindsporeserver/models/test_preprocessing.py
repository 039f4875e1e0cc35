"""Raw rows in, labels out by every protocol; the same arrays reach the network in training, evaluation and serving."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.samples import Samples
from kfp_mindspore.formats.bundle import PREPROCESSING_FILE, ModelBundle, write_bundle
from kfp_mindspore.inference import run_smoke_test
from kfp_mindspore.inference.predict import predict
from kfp_mindspore.mindir import export_mindir

pytestmark = pytest.mark.mindspore

Arrays = dict[str, Any]


def predict_v1(server: Any, name: str, column: str, rows: Any) -> Arrays:
    status, found, _ = server.request(f"/v1/models/{name}:predict", {"instances": rows.tolist()})
    assert status == 200, found
    outputs = found["predictions"]
    if not isinstance(outputs[0], dict):
        return {"output": np.array(outputs, np.float32)}
    return {
        "output": np.array([row["output"] for row in outputs], np.float32),
        "label": np.array([row["label"] for row in outputs]),
    }


def predict_v2(server: Any, name: str, column: str, rows: Any) -> Arrays:
    tensor = {"name": column, "shape": rows.shape, "datatype": "FP32", "data": rows.ravel().tolist()}
    status, found, _ = server.request(f"/v2/models/{name}/infer", {"inputs": [tensor]})
    assert status == 200, found
    return {output["name"]: np.array(output["data"]).reshape(output["shape"]) for output in found["outputs"]}


def predict_binary(server: Any, name: str, column: str, rows: Any) -> Arrays:
    tensor = {"name": column, "shape": rows.shape, "datatype": "FP32", "parameters": {"binary_data_size": rows.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    status, content, headers = server.request(
        f"/v2/models/{name}/infer",
        head + rows.tobytes(),
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 200, content
    (length,) = [int(value) for key, value in headers.items() if key.lower() == "inference-header-content-length"]
    outputs, position, found = json.loads(content[:length])["outputs"], length, {}
    for output in outputs:
        size = output["parameters"]["binary_data_size"]
        found[output["name"]] = read_tensor(content[position : position + size], output["datatype"], output["shape"])
        position += size
    return found


def predict_grpc(server: Any, name: str, column: str, rows: Any) -> Arrays:
    tensor = pb.ModelInferRequest.InferInputTensor(name=column, shape=rows.shape, datatype="FP32")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        request = pb.ModelInferRequest(model_name=name, inputs=[tensor], raw_input_contents=[rows.tobytes()])
        answer = GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    return {
        output.name: read_tensor(content, output.datatype, output.shape)
        for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def read_tensor(content: bytes, datatype: str, shape: Any) -> Any:
    if datatype == "FP32":
        return np.frombuffer(content, np.float32).reshape(shape)
    texts = []
    while content:
        size = int.from_bytes(content[:4], "little")
        texts.append(content[4 : 4 + size].decode())
        content = content[4 + size :]
    return np.array(texts).reshape(shape)


PROTOCOLS = [predict_v1, predict_v2, predict_binary, predict_grpc]
ECHOED = ("digits", "breast_cancer")


def compute_no_loss(outputs: Any, labels: Any) -> Any:
    return outputs.mean() * 0.0


def train_echo(root: Path, name: str) -> tuple[Samples, Any]:
    """Train a network that returns its input, and export it to `root / name`.

    Returns:
        The test split as evaluation reads it, and the network's inputs of an epoch of training.
    """
    import small_networks
    from mindspore import nn

    from kfp_mindspore.training import TrainingConfig, fit

    dataset = load_dataset(name, root / f"{name}-data")
    batches: list[Any] = []

    def record(batch: Any, generator: Any) -> Any:
        batches.append(batch.copy())
        return batch

    network = small_networks.Echo()
    fit(
        network,
        dataset,
        loss=compute_no_loss,
        optimizer=nn.SGD(network.trainable_params(), 0.0),
        config=TrainingConfig(
            epochs=1, batch_size=64, shuffle=False, augment=record, output_dir=root / f"{name}-training", verbose=False
        ),
    )
    export_mindir(root / f"{name}-training" / "checkpoint", root / name, dataset_dir=dataset.path)
    return read_samples(dataset, "test"), np.concatenate(batches)


@pytest.fixture(scope="module")
def echoed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the directory of the models, and of each dataset the samples and the inputs of training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))
        root = tmp_path_factory.mktemp("echo")
        return root, {name: train_echo(root, name) for name in ECHOED}


def write_joined(models: Path, path: Path) -> Path:
    """Write the model with two inputs with one of them concatenated from two columns."""
    bundle = ModelBundle.open(models / "pair")
    declaration = {
        "inputs": [
            {"name": "a", "dtype": "float32", "shape": [-1, 2]},
            {"name": "b", "dtype": "float32", "shape": [-1]},
            {"name": "index", "dtype": "int32", "shape": [-1]},
        ],
        "pre": [{"type": "Concatenate", "columns": ["a", "b"], "name": "values"}],
    }
    with write_bundle(path) as writer:
        shutil.copy(bundle.mindir, writer.directory)
        (writer.directory / PREPROCESSING_FILE).write_text(json.dumps(declaration))
        writer.sign(bundle.signature)
    return path


@pytest.fixture(scope="module")
def served(models: Path, echoed: Any, start_server: Callable[..., Any]) -> Any:
    directories = {"raw": models / "raw", **{name: echoed[0] / name for name in ECHOED}}
    directories["joined"] = write_joined(models, echoed[0] / "joined")
    server = start_server(f"raw={models / 'raw'}", "raw", *[f"--model_dir={k}={v}" for k, v in directories.items()][1:])
    server.wait("/v2/health/ready", 120)
    return server


@pytest.mark.parametrize("name", ECHOED)
def test_training_evaluation_and_serving_compute_same_arrays(served: Any, echoed: Any, name: str) -> None:
    samples, trained = echoed[1][name]
    (evaluated,), ((column, raw),) = samples.inputs.values(), samples.raw.items()
    train = read_samples(echoed[0] / f"{name}-data", "train")
    np.testing.assert_array_equal(trained, next(iter(train.inputs.values()))[: len(trained)])
    assert len(trained) >= 300
    for rows, expected in ((raw, evaluated), (train.raw[column][:320], trained[:320])):
        for protocol in PROTOCOLS:
            found = protocol(served, name, column, rows)["output"]
            np.testing.assert_array_equal(found.astype(np.float32), expected.reshape(len(rows), -1))


@pytest.mark.parametrize("count", [1, 300])
def test_raw_pixels_give_labels_by_each_protocol(served: Any, models: Path, count: int) -> None:
    test = read_samples(models / "dataset", "test", count=count)
    assert test.raw["image"].max() == 16
    results = [protocol(served, "raw", "image", test.raw["image"]) for protocol in PROTOCOLS]
    for found in results:
        assert list(found) == ["output", "label"]
        assert found["label"].tolist() == [str(index) for index in found["output"].argmax(axis=1)]
        assert np.mean([int(label) == wanted for label, wanted in zip(found["label"], test.target, strict=True)]) > 0.9
        np.testing.assert_allclose(found["output"], results[0]["output"], atol=1e-6)


def test_clients_send_raw_rows(served: Any, models: Path) -> None:
    url = f"http://127.0.0.1:{served.port}"
    report = run_smoke_test(url, "raw", models / "raw")
    assert report.max_abs_diff <= 1e-5
    assert (report.samples, report.prediction, report.label) == (32, report.label, report.label)
    test = read_samples(models / "dataset", "test", count=70)
    labels = predict(url, "raw", test.raw["image"])["label"]
    assert {type(label) for label in labels} == {str}
    assert np.mean([int(label) == wanted for label, wanted in zip(labels, test.target, strict=True)]) > 0.8
    _, found, _ = served.request("/v2/models/raw")
    assert [(spec["name"], spec["datatype"], spec["shape"]) for spec in (*found["inputs"], *found["outputs"])] == [
        ("image", "FP32", [-1, 1, 8, 8]),
        ("output", "FP32", [-1, 10]),
        ("label", "BYTES", [-1]),
    ]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 2, 3], [4], "input 'a': shape must be (-1, 2), got (1, 3)"),
        # As many numbers as the network takes.
        ([1], [2, 3], "input 'a': shape must be (-1, 2), got (1, 1)"),
        ([[1, 2]], 3, "input 'a': shape must be (-1, 2), got (1, 1, 2)"),
        ([], 3, "input 'a': shape must be (-1, 2), got (1, 0)"),
        ([1, 2], [3], "input 'b': shape must be (-1,), got (1, 1)"),
    ],
)
def test_each_protocol_checks_declared_shapes(served: Any, a: Any, b: Any, message: str) -> None:
    body = {"instances": [{"a": a, "b": b, "index": 3}]}
    status, found, _ = served.request("/v1/models/joined:predict", body)
    assert (status, message in found["error"]) == (400, True), found
    arrays = {"a": np.array([a], np.float32), "b": np.array([b], np.float32), "index": np.array([3], np.int32)}
    named = [(name, array, "INT32" if name == "index" else "FP32") for name, array in arrays.items()]
    tensors = [
        {"name": name, "shape": array.shape, "datatype": datatype, "data": array.ravel().tolist()}
        for name, array, datatype in named
    ]
    status, found, _ = served.request("/v2/models/joined/infer", {"inputs": tensors})
    assert (status, message in found["error"]) == (400, True), found
    described = [
        pb.ModelInferRequest.InferInputTensor(name=name, shape=array.shape, datatype=datatype)
        for name, array, datatype in named
    ]
    contents = [array.tobytes() for array in arrays.values()]
    request = pb.ModelInferRequest(model_name="joined", inputs=described, raw_input_contents=contents)
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel, pytest.raises(grpc.RpcError) as caught:
        GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    assert (caught.value.code(), message in caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_declared_columns_of_fitting_shapes_are_concatenated(served: Any) -> None:
    status, found, _ = served.request(
        "/v1/models/joined:predict",
        {"instances": [{"a": [1, 2], "b": 3, "index": 7}, {"index": 8, "b": 6, "a": [4, 5]}]},
    )
    assert status == 200, found
    assert [list(row.values()) for row in found["predictions"]] == [[[2, 4, 6], 8], [[8, 10, 12], 9]]
