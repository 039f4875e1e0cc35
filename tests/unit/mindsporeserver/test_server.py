"""A real server process, in every protocol."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import MODEL_FILE, ModelBundle, write_bundle

pytestmark = pytest.mark.mindspore

IMAGE = np.full((1, 8, 8), 0.5, np.float32)
V1, V2 = "/v1/models/digits:predict", "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def samples(models: Path) -> tuple[np.ndarray, np.ndarray]:
    verified = ModelBundle.open(models / "free").read_verified()
    return np.asarray(verified.inputs["image"]), np.asarray(verified.outputs["output"])


def make_input(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": IMAGE.ravel().tolist(), **changes}
    return {"inputs": [{key: value for key, value in tensor.items() if value is not None}]}


def make_binary(array: np.ndarray, name: str = "image", **fields: Any) -> tuple[bytes, dict[str, str]]:
    content = array.tobytes()
    tensor = {"name": name, "shape": list(array.shape), "datatype": "FP32"}
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(content)}}], **fields}).encode()
    return head + content, {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_v1(server: Any, samples: tuple[np.ndarray, np.ndarray], rows: int) -> None:
    inputs, outputs = samples
    status, body, _ = server.request(V1, {"instances": inputs[:rows].tolist()})
    assert status == 200
    np.testing.assert_allclose(np.array(body["predictions"], np.float32), outputs[:rows], atol=1e-5)
    status, named, _ = server.request(V1, {"instances": [{"image": row.tolist()} for row in inputs[:rows]]})
    assert (status, named) == (200, body)


def test_more_rows_than_largest_batch(server: Any, samples: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, outputs = (np.concatenate([array, array, array[:5]]) for array in samples)
    status, body, _ = server.request(V1, {"instances": inputs.tolist()})
    assert status == 200
    np.testing.assert_allclose(np.array(body["predictions"], np.float32), outputs, atol=1e-5)


def test_v2_json(server: Any, samples: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, outputs = samples[0][:5], samples[1][:5]
    for data in (inputs.ravel().tolist(), inputs.tolist()):
        request = {"id": "42", **make_input(shape=[5, 1, 8, 8], data=data), "outputs": [{"name": "output"}]}
        status, body, _ = server.request(V2, request)
        assert status == 200
        assert (body["id"], body["model_name"]) == ("42", "digits")
        (output,) = body["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("output", "FP32", [5, 10])
        np.testing.assert_allclose(np.array(output["data"], np.float32).reshape(5, 10), outputs, atol=1e-5)


def test_v2_binary(server: Any, samples: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, outputs = samples[0][:4], samples[1][:4]
    body, headers = make_binary(inputs)
    status, answer, _ = server.request(V2, body, headers)
    assert status == 200
    np.testing.assert_allclose(np.array(answer["outputs"][0]["data"]).reshape(4, 10), outputs, atol=1e-5)
    for fields in (
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "output", "parameters": {"binary_data": True}}]},
    ):
        body, headers = make_binary(inputs, **fields)
        status, content, found = server.request(V2, body, headers)
        assert status == 200
        length = int({name.lower(): value for name, value in found.items()}["inference-header-content-length"])
        assert json.loads(content[:length])["outputs"][0]["shape"] == [4, 10]
        np.testing.assert_allclose(np.frombuffer(content[length:], np.float32).reshape(4, 10), outputs, atol=1e-5)


GRPC = """
import asyncio, json, sys
import kfp_mindspore
import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest
from grpc import RpcError

async def main(url, name, file):
    client = InferenceGRPCClient(url=url)
    with np.load(file) as archive:
        inputs, outputs = archive["input.image"][:6], archive["output.output"][:6]
    result = {"live": await client.is_server_live(), "ready": await client.is_server_ready(),
              "model": await client.is_model_ready(name)}
    for binary in (True, False):
        tensor = InferInput("image", list(inputs.shape), "FP32")
        tensor.set_data_from_numpy(inputs, binary_data=binary)
        answer = await client.infer(InferRequest(model_name=name, infer_inputs=[tensor]))
        found = answer.outputs[0].as_numpy()
        result[f"difference_{binary}"] = float(np.abs(found - outputs).max())
    wrong = InferInput("image", [6, 8, 8], "FP32")
    wrong.set_data_from_numpy(inputs[:, 0])
    try:
        await client.infer(InferRequest(model_name=name, infer_inputs=[wrong]))
    except RpcError as error:
        result["error"] = [error.code().name, error.details()]
    await client.close()
    print(json.dumps(result))

asyncio.run(main(*sys.argv[1:]))
"""


def test_grpc(server: Any, models: Path) -> None:
    arguments = [f"127.0.0.1:{server.grpc_port}", "digits", str(models / "free" / "verified.npz")]
    done = subprocess.run([sys.executable, "-c", GRPC, *arguments], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["live"], result["ready"], result["model"]) == (True, True, True)
    assert max(result["difference_True"], result["difference_False"]) < 1e-5
    assert result["error"] == ["INVALID_ARGUMENT", "input 'image': shape must be (-1, 1, 8, 8), got (6, 8, 8)"]


def test_metadata_and_health(server: Any) -> None:
    status, body, _ = server.request("/v2/models/digits")
    assert (status, body["name"]) == (200, "digits")
    assert body["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert body["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 10]}]
    assert server.request("/v2/health/live")[:2] == (200, {"live": True})
    assert server.request("/v2/health/ready")[:2] == (200, {"ready": True})
    assert server.request("/v2/models/digits/ready")[:2] == (200, {"name": "digits", "ready": True})
    assert server.request("/v1/models/digits")[:2] == (200, {"name": "digits", "ready": True})


def test_unknown_models_are_not_found(server: Any) -> None:
    assert server.request("/v1/models/cats:predict", {"instances": []})[0] == 404
    assert server.request("/v2/models/cats/infer", make_input())[0] == 404
    assert server.request("/v2/models/cats")[0] == 404


ROW = IMAGE.tolist()
BAD = [
    (V1, {}, "instances: missing, got fields none"),
    (V1, {"rows": [ROW]}, "instances: missing, got fields 'rows'"),
    (V1, {"inputs": 3}, "instances: must be a list, got a number"),
    (V1, [ROW], "body: must be a JSON object with 'instances', got a list"),
    (V1, b"{", "body: not valid JSON: unexpected end of data"),
    (V1, b"", "body: not valid JSON"),
    (V1, {"instances": []}, "shape must be (-1, 1, 8, 8), got (0,)"),
    (V1, {"instances": ROW}, "input 'image': shape must be (-1, 1, 8, 8), got (1, 8, 8)"),
    (V1, {"instances": ["a", "b"]}, "must contain numbers (float32), got strings"),
    (V1, {"instances": [[[[None] * 8] * 8]]}, "must contain numbers (float32), got nulls"),
    (V1, {"instances": [[[[True] * 8] * 8]]}, "must contain numbers (float32), got booleans"),
    (V1, {"instances": [[[1, 2], [3]]]}, "shape must be (-1, 1, 8, 8), got rows of different lengths"),
    (V1, {"instances": [{"picture": ROW}]}, "instances[0]: input 'image' missing, got 'picture'"),
    (V1, {"instances": [{"image": ROW}, {"image": ROW, "x": 1}]}, "instances[1]: input 'x' unknown, expected 'image'"),
    (V1, {"instances": 3}, "instances: must be a list, got a number"),
    (V2, {}, "inputs: must be a list of inputs, got none"),
    (V2, [], "body: must be a JSON object with 'inputs', got a list"),
    (V2, b"{", "body: not valid JSON: unexpected end of data"),
    (V2, {"inputs": []}, "inputs: must be a list of inputs, got an empty list"),
    (V2, make_input(name="picture"), "input 'picture': unknown, expected 'image'"),
    (V2, {"inputs": make_input()["inputs"] * 2}, "input 'image': given twice"),
    (V2, make_input(datatype="FP64"), "input 'image': datatype must be FP32, got 'FP64'"),
    (V2, make_input(datatype="FLOAT"), "input 'image': datatype must be FP32, got 'FLOAT'"),
    (V2, make_input(shape=[1, 64]), "input 'image': shape must be (-1, 1, 8, 8), got (1, 64)"),
    (V2, make_input(shape=[-1, 1, 8, 8]), "input 'image': shape must be (-1, 1, 8, 8), got (-1, 1, 8, 8)"),
    (V2, make_input(shape=[2, 1, 8, 8]), "data of shape [2, 1, 8, 8] must contain 128 values, got 64"),
    (V2, make_input(shape=["one"]), "input 'image': shape must be a list of integers, got ['one']"),
    (V2, make_input(shape=None), "input 'image': shape must be a list of integers, got None"),
    (V2, make_input(data=["a"] * 64), "must contain numbers (float32), got strings"),
    (V2, make_input(data=[[1, 2], [3]]), "got rows of different lengths"),
    (V2, make_input(data=None), "input 'image': data is missing"),
    (V2, {**make_input(), "outputs": [{"name": "label"}]}, "output 'label': unknown, expected 'output'"),
]


@pytest.mark.parametrize(("path", "body", "message"), BAD, ids=[f"{case[0][1:3]}-{case[2]}" for case in BAD])
def test_bad_input_is_400_with_expected_and_found(server: Any, path: str, body: Any, message: str) -> None:
    status, answer, _ = server.request(path, body)
    assert (status, message in answer["error"]) == (400, True), answer


def corrupt_binary(kind: str) -> tuple[bytes, dict[str, str]]:
    body, headers = make_binary(IMAGE[None], name="picture" if kind == "name" else "image")
    length = int(headers["Inference-Header-Content-Length"])
    if kind == "short":
        return body[:-4], headers
    if kind == "no length":
        del headers["Inference-Header-Content-Length"]
    if kind == "wrong length":
        headers["Inference-Header-Content-Length"] = str(length - 5)
    if kind == "no number":
        headers["Inference-Header-Content-Length"] = "many"
    if kind == "no inputs":
        head = b'{"id": "1"}'
        return head, {**headers, "Inference-Header-Content-Length": str(len(head))}
    return body, headers


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("short", "input 'image': binary_data_size must be at most 252, the rest of the body, got 256"),
        ("no length", "body: not valid JSON"),
        ("wrong length", "body: not valid JSON"),
        ("no number", "header Inference-Header-Content-Length: must be 0 to"),
        ("no inputs", "inputs: must be a list of inputs, got none"),
        ("name", "input 'picture': unknown, expected 'image'"),
    ],
)
def test_bad_binary_input_is_400(server: Any, kind: str, message: str) -> None:
    status, answer, _ = server.request(V2, *corrupt_binary(kind))
    assert (status, message in answer["error"]) == (400, True), answer


def test_it_still_responds_and_logs_no_trace(server: Any, samples: tuple[np.ndarray, np.ndarray]) -> None:
    inputs, outputs = samples

    def ask(row: int) -> float:
        _, body, _ = server.request(V1, {"instances": inputs[row : row + 1].tolist()})
        return float(np.abs(np.array(body["predictions"], np.float32) - outputs[row]).max())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert max(pool.map(ask, range(64))) < 1e-5
    assert "Traceback" not in server.log.read_text()


def test_several_inputs_and_outputs(pair_server: Any) -> None:
    rows = [{"values": [1, 2.5, 3], "index": 7}, {"values": [0, 0, 1], "index": -1}]
    status, body, _ = pair_server.request("/v1/models/pair:predict", {"instances": rows})
    assert (status, body["predictions"]) == (
        200,
        [{"output_0": [2, 5, 6], "output_1": 8}, {"output_0": [0, 0, 2], "output_1": 0}],
    )
    request = {
        "inputs": [
            {"name": "index", "shape": [2], "datatype": "INT32", "data": [1, 2]},
            {"name": "values", "shape": [2, 3], "datatype": "FP32", "data": [1, 1, 1, 2, 2, 2]},
        ],
        "outputs": [{"name": "output_1"}],
    }
    status, body, _ = pair_server.request("/v2/models/pair/infer", request)
    assert status == 200
    assert [(output["name"], output["datatype"], output["data"]) for output in body["outputs"]] == [
        ("output_1", "INT32", [2, 3])
    ]


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([[1, 2, 3]], "instances: must be objects with 'values', 'index', got a list"),
        ([{"values": [1, 2, 3]}], "instances[0]: input 'index' missing, got 'values'"),
        ([{"values": [1, 2, 3], "index": 1.5}], "input 'index': must contain integers (int32), got floats"),
        (
            [{"values": [1, 2, 3], "index": 1 << 40}],
            "values must be -2147483648 to 2147483647 (int32), got 1099511627776",
        ),
    ],
)
def test_bad_rows_of_several_inputs(pair_server: Any, instances: list[Any], message: str) -> None:
    status, answer, _ = pair_server.request("/v1/models/pair:predict", {"instances": instances})
    assert (status, message in answer["error"]) == (400, True), answer


def test_live_before_ready_and_signal_ends_it(models: Path, start_server: Callable[..., Any]) -> None:
    server = start_server(models / "fixed", "digits", "--enable_grpc=false")
    server.wait("/v2/health/live")
    early = server.request("/v2/health/ready")[0], server.request("/v2/models/digits/ready")[0]
    refused = server.request(V1, {"instances": [ROW]})[0]
    # On a quick machine it may be ready at once: only responses before readiness are a fault.
    assert {*early, refused} <= {200, 503}
    server.wait("/v2/health/ready")
    assert server.request(V1, {"instances": [ROW, ROW, ROW]})[0] == 200
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=300) == 0


def flip(path: Path) -> None:
    content = bytearray((path / MODEL_FILE).read_bytes())
    content[len(content) // 3] ^= 16
    (path / MODEL_FILE).write_bytes(content)


def cut(path: Path) -> None:
    signature = ModelBundle.open(path).signature
    content = (path / MODEL_FILE).read_bytes()
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(content[:999])
        writer.sign(signature)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "sha256 must be"),
        (cut, "MindSpore cannot load it"),
        (
            lambda path: [file.unlink() for file in path.iterdir()],
            "an empty directory: signature.json and model.mindir",
        ),
    ],
    ids=["flip", "cut", "empty"],
)
def test_bad_bundle_ends_it_with_one_line(
    models: Path, tmp_path: Path, start_server: Callable[..., Any], damage: Callable[[Path], Any], message: str
) -> None:
    bundle = Path(shutil.copytree(models / "free", tmp_path / "model"))
    damage(bundle)
    server = start_server(bundle)
    assert server.process.wait(timeout=300) == 2
    log = server.log.read_text()
    assert "Traceback" not in log
    (line,) = [line for line in log.splitlines() if line.startswith("Error: ")]
    assert str(bundle) in line
    assert message in line


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--http_port=70000", "--http_port: must be an integer ≥ 1 and ≤ 65535, got 70000"),
        ("--workers=0", "--workers: must be an integer ≥ 1, got 0"),
        ("--max_batch=0", "--max_batch: must be an integer ≥ 1, got 0"),
    ],
)
def test_bad_flags(models: Path, start_server: Callable[..., Any], flag: str, message: str) -> None:
    server = start_server(models / "free", "digits", flag)
    assert server.process.wait(timeout=300) == 2
    assert message in server.log.read_text()


def test_port_in_use_is_named(models: Path, server: Any, start_server: Callable[..., Any]) -> None:
    for flag in ("--http_port", "--grpc_port"):
        other = start_server(models / "free", "digits", f"{flag}={server.port}")
        assert other.process.wait(timeout=300) == 2
        assert f"{flag}: port {server.port} cannot be used on 0.0.0.0: Address already in use" in other.log.read_text()
