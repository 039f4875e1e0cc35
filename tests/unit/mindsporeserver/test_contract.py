"""A stock kserve.ModelServer and ours as processes: the same requests, the same responses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.ports import reserve_port
from tests.support.serving.serving_client import Connection, GrpcConnection, make_message, messages

pytestmark = pytest.mark.mindspore

SCRIPT = Path(__file__).parents[2] / "support" / "serving" / "stock_server.py"


@pytest.fixture(scope="module")
def stock(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """The ports of a stock server."""
    ports = reserve_port(), reserve_port()
    log = tmp_path_factory.mktemp("stock") / "log"
    command = [sys.executable, str(SCRIPT), str(models / "free"), *map(str, ports)]
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:

        async def is_ready() -> bool:
            async with Connection(ports[0]) as connection:
                return (await connection.get("/v2/health/ready")).status == 200

        try:
            deadline = time.monotonic() + 240
            while time.monotonic() < deadline and process.poll() is None:
                try:
                    if asyncio.run(is_ready()):
                        break
                except OSError:
                    time.sleep(0.1)
            else:
                pytest.fail(log.read_text()[-3000:])
            yield ports[0], ports[1]
        finally:
            process.kill()


def test_http_responses_are_equal(stock: tuple[int, int], server: Any, models: Path) -> None:
    image = np.asarray(ModelBundle.open(models / "free").read_verified().inputs["image"])[:2]
    tensor = {"name": "image", "shape": [2, 1, 8, 8], "datatype": "FP32", "data": image.ravel().tolist()}
    v1, v2 = "/v1/models/digits:predict", "/v2/models/digits/infer"

    async def run() -> None:
        async with Connection(stock[0]) as theirs, Connection(server.port) as ours:
            for path in ("/", "/v1/models", "/v1/models/digits", "/v2/health/live", "/v2/health/ready", "/v2/models",
                         "/v2/models/digits/ready", "/v1/models/cats", "/v2/models/cats/ready"):  # fmt: skip
                first, second = await theirs.get(path), await ours.get(path)
                assert (first.status, first.json()) == (second.status, second.json()), path
            answers = [await one.post(v1, {"instances": image.tolist()}) for one in (theirs, ours)]
            predictions = [answer.json()["predictions"] for answer in answers]
            np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-5)
            outputs = [(await one.post(v2, {"inputs": [tensor]})).json()["outputs"][0] for one in (theirs, ours)]
            for key in ("shape", "datatype"):
                assert outputs[0][key] == outputs[1][key]
            np.testing.assert_allclose(outputs[0]["data"], outputs[1]["data"], atol=1e-5)
            for path, body in ((v1, b"{"), ("/v1/models/cats:predict", b"{}"), ("/nowhere", b"{}")):
                statuses = [(await one.request("POST", path, body)).status for one in (theirs, ours)]
                assert statuses[0] == statuses[1], path

    asyncio.run(run())


@pytest.mark.parametrize("raw", [False, True], ids=["typed", "raw"])
def test_grpc_responses_are_equal(stock: tuple[int, int], server: Any, models: Path, raw: bool) -> None:
    image = np.asarray(ModelBundle.open(models / "free").read_verified().inputs["image"])[:2]
    request = make_message("digits", {"image": image}, raw=raw, request_id="7").SerializeToString()

    async def run() -> None:
        found = []
        for port in (stock[1], server.grpc_port):
            async with GrpcConnection(port) as connection:
                live = await connection.call("ServerLive", b"")
                ready = await connection.call(
                    "ModelReady", messages.ModelReadyRequest(name="digits").SerializeToString()
                )
                answer = messages.ModelInferResponse.FromString((await connection.call("ModelInfer", request)).body)
            output = answer.outputs[0]
            content = answer.raw_output_contents
            values = np.frombuffer(content[0], np.float32) if content else np.array(output.contents.fp32_contents)
            found.append((live.body, ready.body, answer.id, output.datatype, list(output.shape)))
            found.append(values)
        assert found[0] == found[2]
        np.testing.assert_allclose(found[1], found[3], atol=1e-5)

    asyncio.run(run())
