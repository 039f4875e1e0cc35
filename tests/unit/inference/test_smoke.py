from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import ProcessFailedError, UserError
from kfp_mindspore.formats.bundle import (
    TRANSFORM_FILE,
    ModelBundle,
    Signature,
    TensorSpec,
    VerifiedSamples,
    write_bundle,
)
from kfp_mindspore.formats.example_request import ExampleRequest
from kfp_mindspore.inference import run_smoke_test
from tests.support import http_server

Change = Callable[[str, dict[str, Any]], Any]


class Server(http_server.Server):
    """Responds with the verified outputs of the bundle's first samples, changed by the test."""

    bundle: ModelBundle
    change: Change
    requests: list[tuple[str, dict[str, Any]]]

    def answer(self, path: str, request: dict[str, Any]) -> Any:
        self.requests.append((path, request))
        verified = self.bundle.read_verified()
        if path.startswith("/v1/"):
            count = len(request["instances"])
            columns = {name: array[:count].tolist() for name, array in verified.outputs.items()}
            rows: list[Any] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            return {"predictions": rows if len(columns) > 1 else next(iter(columns.values()))}
        count = request["inputs"][0]["shape"][0]
        return {
            "outputs": [
                {"name": name, "shape": [count, *array.shape[1:]], "data": array[:count].ravel().tolist()}
                for name, array in verified.outputs.items()
            ]
        }


@pytest.fixture
def server(local_services: Any) -> Iterator[Server]:
    class Handler(http_server.Handler):
        def do_POST(self) -> None:
            request = json.loads(self.read_body())
            self.respond(200, json.dumps(new.change(self.path[:3], new.answer(self.path, request))).encode())

    with Server(Handler) as new:
        new.bundle = ModelBundle.open(local_services.make_bundle())
        new.change = lambda path, answer: answer
        new.requests = []
        yield new


def run(server: Server, **options: Any) -> Any:
    return run_smoke_test(f"http://127.0.0.1:{server.server_port}/", "digits", server.bundle.path, **options)


def test_true_service_passes(server: Server) -> None:
    report = run(server, index=4)
    verified = server.bundle.read_verified()
    assert (report.samples, report.max_abs_diff, dict(report.max_abs_diffs)) == (32, 0.0, {"v1": 0.0, "v2": 0.0})
    assert report.prediction == ("cat", "dog", "eel")[int(verified.outputs["scores"][4].argmax())]
    assert (report.label, report.index) == ("dog", 4)
    assert report.seconds > 0
    assert json.loads(json.dumps(report.to_dict()))["max_abs_diff"] == 0.0
    (first, v1), (second, v2) = server.requests
    assert (first, second) == ("/v1/models/digits:predict", "/v2/models/digits/infer")
    np.testing.assert_array_equal(np.array(v1["instances"], np.float32), verified.inputs["image"][:32])
    (tensor,) = v2["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("image", "FP32", [32, 4])


def spoil(protocol: str, sample: int, amount: float) -> Change:
    def change(path: str, answer: dict[str, Any]) -> Any:
        if path == f"/{protocol}" == "/v1":
            answer["predictions"][sample][1] += amount
        elif path == f"/{protocol}":
            answer["outputs"][0]["data"][3 * sample + 1] += amount
        return answer

    return change


@pytest.mark.parametrize("protocol", ["v1", "v2"])
def test_difference_is_reported_with_protocol_and_sample(server: Server, protocol: str) -> None:
    server.change = spoil(protocol, 17, 0.25)
    with pytest.raises(ProcessFailedError) as caught:
        run(server)
    assert f"smoke test by {protocol}: output scores: sample 17 differs by 0.25" in caught.value.message
    assert "allowed is 1e-05" in caught.value.message


def test_tolerance_is_limit(server: Server) -> None:
    server.change = spoil("v2", 3, 0.001)
    report = run(server, tolerance=0.01)
    assert report.max_abs_diffs["v1"] == 0.0
    assert report.max_abs_diffs["v2"] == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path, answer: {"predictions": answer["predictions"][:5]}, "must have shape (32, 3), got (5, 3)"),
        (lambda path, answer: {"predictions": [["a"]]}, "output scores: not an array of float32"),
        (lambda path, answer: {"predictions": [[float("nan")] * 3] * 32}, "differs by inf"),
        (lambda path, answer: {"error": "no"}, "no list of predictions"),
        (lambda path, answer: {"outputs": []} if path == "/v2" else answer, "outputs: scores missing, got none"),
        (
            lambda path, answer: (
                {"outputs": [{"name": "scores", "shape": [2], "data": [1]}]} if path == "/v2" else answer
            ),
            "output scores: 1 values do not fill shape [2]",
        ),
    ],
)
def test_malformed_responses_are_reported(server: Server, change: Change, expected: str) -> None:
    server.change = change
    with pytest.raises(ProcessFailedError) as caught:
        run(server)
    assert expected in caught.value.message


def test_several_inputs_and_outputs(server: Server, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    inputs = {"left": random.random((32, 2), np.float32), "right": np.arange(32, dtype=np.int32)}
    outputs = {"sum": random.random((32,), np.float32), "best": np.array([np.inf] * 32, np.float32)}
    with write_bundle(tmp_path / "pair") as writer:
        (writer.directory / "model.mindir").write_bytes(b"graph")
        writer.write_verified(VerifiedSamples(inputs, outputs, None))
        specs = [
            tuple(TensorSpec(name, array.dtype.name, (-1, *array.shape[1:])) for name, array in arrays.items())
            for arrays in (inputs, outputs)
        ]
        writer.sign(Signature(*specs, mindspore_version="2.9.0"))
    server.bundle = ModelBundle.open(tmp_path / "pair")
    report = run(server)
    assert (report.max_abs_diff, report.label) == (0.0, "")
    assert float(report.prediction) == pytest.approx(float(outputs["sum"][0]))
    assert server.requests[0][1]["instances"][5] == {"left": inputs["left"][5].tolist(), "right": 5}
    server.change = lambda path, answer: {"predictions": [{"sum": 1}] * 32}
    with pytest.raises(ProcessFailedError, match="no values of best"):
        run(server)


def test_missing_server_is_reported(local_services: Any, free_port: int) -> None:
    with pytest.raises(ProcessFailedError, match=r"smoke test of digits by v1: .*no answer"):
        run_smoke_test(f"http://127.0.0.1:{free_port}", "digits", local_services.make_bundle())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"samples": 0}, "samples: must be 1 to 40"),
        ({"samples": 41}, "got 41"),
        ({"index": 32}, "index: must be 0 to 31"),
    ],
)
def test_more_than_bundle_has(server: Server, options: dict[str, int], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        run(server, **options)
    assert server.requests == []


def test_damaged_bundle_is_refused_before_any_request(server: Server) -> None:
    file = server.bundle.path / "verified.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="the file was changed"):
        run(server)
    assert server.requests == []


# ---- models with a transform


def make_transformed(path: Path, example: ExampleRequest | None) -> ModelBundle:
    with write_bundle(path) as writer:
        (writer.directory / "model.mindir").write_bytes(b"graph")
        (writer.directory / TRANSFORM_FILE).write_text("transform = None")
        if example is not None:
            writer.write_example(example)
        specs = (TensorSpec("image", "float32", (-1, 4)),)
        writer.sign(Signature(specs, specs, "2.9.0", metadata={"labels": '["cat"]'}))
    return ModelBundle.open(path)


def make_texts(*rows: Any) -> Any:
    return np.array(rows, object)


EXAMPLE = ExampleRequest(
    {"image": make_texts(b"\x89PNG", b"a text")},
    {
        "classes": make_texts([b"cat", "né".encode()], [b"\xff", b""]),
        "scores": np.array([[0.5, 0.2], [1, 0]], np.float32),
    },
)


@pytest.fixture
def transformed(server: Server, tmp_path: Path) -> Server:
    server.bundle = make_transformed(tmp_path / "transformed", EXAMPLE)
    classes = [["cat", "né"], [{"b64": "/w=="}, ""]]
    scores = EXAMPLE.outputs["scores"].tolist()

    def answer(path: str, request: dict[str, Any]) -> Any:
        server.requests.append((path, request))
        if path.startswith("/v1/"):
            return {"predictions": [{"classes": row[0], "scores": row[1]} for row in zip(classes, scores, strict=True)]}
        return {
            "outputs": [
                {"name": "classes", "shape": [2, 2], "data": [text for row in classes for text in row]},
                {"name": "scores", "shape": [2, 2], "data": [score for row in scores for score in row]},
            ]
        }

    server.answer = answer  # type: ignore[method-assign]
    return server


def test_model_with_transform_gets_its_example(transformed: Server) -> None:
    report = run(transformed, index=30)
    assert (report.samples, report.index, report.prediction, report.label) == (2, 1, "\ufffd, ", "")
    (_, v1), (_, v2) = transformed.requests
    files = [{"b64": "iVBORw=="}, {"b64": "YSB0ZXh0"}]
    assert v1 == {"instances": files}
    assert v2 == {"inputs": [{"name": "image", "shape": [2], "datatype": "BYTES", "data": files}]}


def test_another_class_is_difference(transformed: Server) -> None:
    def change(path: str, answer: dict[str, Any]) -> Any:
        if path == "/v1":
            answer["predictions"][1]["classes"] = ["dog", ""]
        return answer

    transformed.change = change
    with pytest.raises(ProcessFailedError, match=r"by v1: output classes: sample 1 must be .*, the service answered"):
        run(transformed)


def test_transform_without_example_cannot_be_compared(server: Server, tmp_path: Path) -> None:
    server.bundle = make_transformed(tmp_path / "transformed", None)
    with pytest.raises(UserError, match=r"has a transform, but no example of what clients send\n.*make_example"):
        run(server)


def test_images_are_sent_within_limit_of_pixels(server: Server, tmp_path: Path) -> None:
    spec, output = TensorSpec("image", "float32", (-1, 1, 8, 8)), TensorSpec("scores", "float32", (-1, 3))
    raw = {"image": np.array([b"a png"] * 6, object)}
    inputs, outputs = {"image": np.zeros((6, 1, 8, 8), np.float32)}, {"scores": np.ones((6, 3), np.float32)}
    with write_bundle(tmp_path / "images") as writer:
        (writer.directory / "model.mindir").write_text("graph")
        writer.write_verified(VerifiedSamples(inputs, outputs, None, raw))
        declared = [{"name": "image", "dtype": "bytes", "shape": [-1]}]
        writer.write_preprocessing({"inputs": declared, "pre": [{"type": "DecodeImage", "mode": "L"}]})
        writer.sign(Signature((spec,), (output,), "2.9.0"))
    server.bundle = ModelBundle.open(tmp_path / "images")
    assert run(server, samples=6).samples == 6
    found = [len(request["instances"]) for path, request in server.requests if path.startswith("/v1/")]
    assert found == [request["inputs"][0]["shape"][0] for path, request in server.requests if "/v2/" in path] == [4, 2]
