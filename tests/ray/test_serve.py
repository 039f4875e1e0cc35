"""bind_model: answers of Serve equal the model server's, also through handles and composed deployments."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.ray import bind_model
from kfp_mindspore.ray.serve import build_application
from tests.support.ports import reserve_port
from tests.support.serving.model_servers import ModelServer

pytestmark = pytest.mark.mindspore

SMALL = {"ray_actor_options": {"num_cpus": 0.1}}
Post = Callable[[str, bytes, dict[str, str]], tuple[int, bytes]]


@pytest.fixture(scope="module")
def serve_port(ray_session: Any) -> Iterator[int]:
    from ray import serve

    port = reserve_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield port
    serve.shutdown()


@pytest.fixture(scope="module")
def digits(serve_port: int, models: Path) -> Any:
    """Serve `raw`; return its handle."""
    from ray import serve

    autoscaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1000}
    return serve.run(bind_model(models / "raw", name="digits", autoscaling_config=autoscaling, **SMALL), name="digits")


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    with ModelServer(tmp_path_factory.mktemp("server"), {"digits": models / "raw"}) as started:
        yield started.wait_ready()


@pytest.fixture(scope="module")
def rows(models: Path) -> np.ndarray:
    """Raw images, as requests have them."""
    return read_samples(models / "dataset", "test", count=40).raw["image"]


def send(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        kept = ("content-type", "inference-header-content-length")
        return response.status, {name: response.getheader(name) for name in kept}, response.read()
    finally:
        connection.close()


def make_v2(array: np.ndarray, **entry: Any) -> dict[str, Any]:
    return {"name": "image", "shape": list(array.shape), "datatype": "FP32", **entry}


def test_http_answers_equal_those_of_model_server(
    digits: Any, serve_port: int, server: ModelServer, rows: np.ndarray
) -> None:
    content = rows[:3].tobytes()
    header = json.dumps({"id": "7", "inputs": [make_v2(rows[:3], parameters={"binary_data_size": len(content)})]})
    binary = {"Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream"}
    v1, v2 = "/v1/models/digits:predict", "/v2/models/digits/infer"
    requests: list[tuple[Any, ...]] = [
        ("POST", v1, json.dumps({"instances": rows[:5].tolist()}).encode()),
        ("POST", v2, json.dumps({"inputs": [make_v2(rows[:70], data=rows.ravel().tolist())]}).encode()),
        ("POST", v2, header.encode() + content, binary),
        ("POST", v1, b"no JSON"),
        ("POST", v1, json.dumps({"instances": [[1, 2]]}).encode()),
        ("POST", "/v1/models/other:predict", b"{}"),
        ("GET", "/v2/models/digits"),
        ("GET", "/v2/models/digits/ready"),
        ("GET", "/v1/models/digits"),
        ("GET", "/nowhere"),
    ]
    for request in requests:
        assert send(serve_port, *request) == send(server.port, *request), request[:2]


def test_handle_computes_what_http_does(digits: Any, serve_port: int, rows: np.ndarray) -> None:
    whole = digits.predict.remote({"image": rows}).result(timeout_s=120)
    alone = [digits.predict.remote({"image": rows[index : index + 1]}) for index in range(len(rows))]
    for name, array in whole.items():
        joined = np.concatenate([one.result(timeout_s=120)[name] for one in alone])
        assert joined.shape == array.shape
        np.testing.assert_array_equal(joined, array) if array.dtype.kind != "f" else np.testing.assert_allclose(
            joined, array, atol=1e-5
        )


def test_mistake_in_batch_is_of_one_request(digits: Any, rows: np.ndarray) -> None:
    good, bad = (digits.predict.remote({"image": array}) for array in (rows[:2], rows[:2, :, :4]))
    with pytest.raises(UserError, match="model digits: input 'image': shape must be"):
        bad.result(timeout_s=120)
    assert all(len(array) == 2 for array in good.result(timeout_s=120).values())


def test_index_outside_table_is_refused_under_route_prefix(serve_port: int, models: Path, ray_session: Any) -> None:
    from ray import serve

    serve.run(bind_model(models / "sequence", name="texts", **SMALL), name="texts", route_prefix="/texts")
    ids = np.zeros((1, 4), np.int32)
    inputs = [
        {"name": "ids", "shape": [1, 4], "datatype": "INT32", "data": ids.ravel().tolist()},
        {"name": "mask", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4},
    ]
    path = "/texts/v2/models/texts/infer"
    assert send(serve_port, "POST", path, json.dumps({"inputs": inputs}).encode())[0] == 200
    inputs[0]["data"] = [0, 0, 0, 50]
    status, _, body = send(serve_port, "POST", path, json.dumps({"inputs": inputs}).encode())
    assert status == 400
    assert b"input 'ids': values must be 0 to 49, got 50" in body
    serve.delete("texts")


def test_transformer_two_models_and_vote(serve_port: int, models: Path, rows: np.ndarray) -> None:
    from ray import serve

    @serve.deployment(**SMALL)
    class Vote:
        """Scales the pixels, asks two models and returns the class with the greatest mean score."""

        def __init__(self, *members: Any) -> None:
            self.members = members

        async def __call__(self, pixels: Any) -> list[int]:
            image = (pixels / 16).reshape(-1, 1, 8, 8).astype(np.float32)
            answers = [member.predict.remote({"image": image}) for member in self.members]
            scores = [next(iter((await answer).values())) for answer in answers]
            return np.mean(scores, axis=0).argmax(axis=1).tolist()  # type: ignore[no-any-return]

    members = [bind_model(models / name, name=name, http=False, **SMALL) for name in ("free", "fixed")]
    handle = serve.run(Vote.bind(*members), name="vote", route_prefix=None)
    found = handle.remote(rows).result(timeout_s=240)
    expected = read_samples(models / "dataset", "test", count=40).target
    assert np.mean(np.array(found) == expected) > 0.8
    serve.delete("vote")


def test_damaged_bundle_fails_deployment_with_reason(serve_port: int, models: Path, tmp_path: Path) -> None:
    import shutil

    from ray import serve

    damaged = shutil.copytree(models / "free", tmp_path / "damaged")
    with (damaged / "model.mindir").open("r+b") as file:
        file.write(b"!")
    with pytest.raises(RuntimeError):
        serve.run(bind_model(damaged, name="damaged", **SMALL), name="damaged", route_prefix="/damaged")
    message = serve.status().applications["damaged"].deployments["damaged"].message
    assert "sha256 must be" in message
    serve.delete("damaged")


def test_directory_without_bundle_is_refused_before_deployment(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"signature\.json"):
        bind_model(tmp_path)


def test_configuration_names_arguments_of_bind_model(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"args: must be arguments of .*bind_model: missing a required argument: 'bundle'"
    ):
        build_application({"name": "digits"})
    with pytest.raises(UserError, match=r"signature\.json"):
        build_application({"bundle": str(tmp_path)})
