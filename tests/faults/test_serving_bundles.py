"""Model directories that change, break and are read-only, under a server with clients."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore import files
from kfp_mindspore.formats.bundle import (
    MODEL_FILE,
    PREPROCESSING_FILE,
    SIGNATURE_FILE,
    VERIFIED_FILE,
    ModelBundle,
    write_bundle,
)
from kfp_mindspore.outputs import OutputKind
from kfp_mindspore.transform import DecodeImage, Pipeline, Resize
from kfp_mindspore.transform.declaration import declare
from tests.support.serving.model_servers import ModelServer
from tests.support.serving.serving_client import INFER, PROTOCOLS, Client, Connection, GrpcConnection, messages

pytestmark = pytest.mark.mindspore

Serve = Callable[..., ModelServer]
RELOADS = int(os.environ.get("RELOADS", "6"))
# Inputs by which tests/support/models/make_serving_models.py compares the models.
IMAGES = np.random.default_rng(5).random((16, 1, 8, 8), np.float32)


def put(source: Path, place: Path) -> None:
    """Put a copy of a bundle in another's place."""
    # Its signature may be damaged.
    kind = OutputKind(SIGNATURE_FILE, names=tuple(file.name for file in place.glob("*")))
    with files.replace_directory(place, kind) as directory:
        for file in source.iterdir():
            shutil.copyfile(file, directory / file.name)


def damage(bundle: Path, how: str) -> None:
    """Damage a bundle that is a copy."""
    file = bundle / MODEL_FILE
    content = bytearray(file.read_bytes())
    if how == "a bit":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "missing":
        file.unlink()
    elif how == "the signature":
        (bundle / SIGNATURE_FILE).write_text((bundle / SIGNATURE_FILE).read_text().replace("float32", "float16"))
    elif how == "half a signature":
        text = (bundle / SIGNATURE_FILE).read_text()
        (bundle / SIGNATURE_FILE).write_text(text[: len(text) // 2])
    elif how == "signed garbage":
        opened = ModelBundle.open(bundle)
        verified = (bundle / VERIFIED_FILE).read_bytes()
        with write_bundle(bundle) as writer:
            (writer.directory / MODEL_FILE).write_bytes(b"\x0a" + bytes(content[100:]))
            (writer.directory / VERIFIED_FILE).write_bytes(verified)
            writer.sign(opened.signature)
    else:
        raise AssertionError(how)


DAMAGES = ["a bit", "cut", "empty", "missing", "the signature", "half a signature", "signed garbage"]


@pytest.fixture(scope="module")
def answers(hard_models: Path) -> dict[str, np.ndarray[Any, Any]]:
    verified = {name: ModelBundle.open(hard_models / name).read_verified() for name in ("a", "b")}
    np.testing.assert_array_equal(verified["a"].inputs["image"], IMAGES)
    found = {name: np.asarray(samples.outputs["output"]) for name, samples in verified.items()}
    assert np.abs(found["a"] - found["b"]).min() > 1e-4
    return found


async def _tell_which(client: Client, answers: dict[str, Any], index: int) -> str:
    """Request one or three rows; return the model of the response, or the error."""
    row = index % 13
    part = slice(row, row + (1 if index % 4 else 3))
    answer, found = await client.ask(PROTOCOLS[index % len(PROTOCOLS)], {"image": IMAGES[part]})
    if found is None:
        return f"{answer.code or answer.status} {answer.details}{answer.body[:200]!r}"
    for name, expected in answers.items():
        if found["output"].shape == expected[part].shape and np.allclose(found["output"], expected[part], atol=1e-5):
            return name
    return "neither"


def test_reload_in_loop_under_load(hard_models: Path, serve: Serve, tmp_path: Path, answers: dict[str, Any]) -> None:
    place = tmp_path / "live" / "model"
    put(hard_models / "a", place)
    server = serve({"digits": place}, "--reload_interval=0.1", "--max_batch=4").wait_ready()
    memory = server.read_memory()
    seen: Counter[str] = Counter()
    loads = 'mindsporeserver_loads_total{model_name="digits",result="ok"}'

    async def run() -> None:
        over = False

        async def work(worker: int) -> None:
            async with Client(server.port, server.grpc_port, "digits") as client:
                index = worker
                while not over:
                    seen[await _tell_which(client, answers, index)] += 1
                    index += 1

        workers = [asyncio.create_task(work(worker)) for worker in range(6)]
        try:
            await replace()
        finally:
            over = True
            await asyncio.gather(*workers)

    async def replace() -> None:
        for turn in range(RELOADS):
            name = "ba"[turn % 2]
            await asyncio.to_thread(put, hard_models / name, place)
            deadline = time.monotonic() + 20
            async with Client(server.port, server.grpc_port, "digits") as client:
                # The new one is served in the end, and from then on only that one.
                while (found := await _tell_which(client, answers, turn)) != name:
                    assert found == "ab"[turn % 2], found
                    assert time.monotonic() < deadline, f"{name} is not served: {server.read_log()[-2000:]}"
                    await asyncio.sleep(0.02)
                assert [await _tell_which(client, answers, i) for i in range(8)] == [name] * 8

    asyncio.run(run())
    assert set(seen) == {"a", "b"}, seen
    assert server.read_metrics()[loads] >= RELOADS
    assert server.read_memory() - memory < 96 << 20, "a graph that is no longer served is still there"
    assert "Traceback" not in server.read_log()


def put_decoding(source: Path, place: Path) -> None:
    """Put a model of image files in another's place."""
    bundle = ModelBundle.open(source)
    with write_bundle(place) as writer:
        shutil.copy(bundle.mindir, writer.directory)
        declaration = declare(Pipeline([DecodeImage("L"), Resize((8, 8))]))
        (writer.directory / PREPROCESSING_FILE).write_text(json.dumps(declaration))
        writer.sign(bundle.signature)


def test_requests_in_progress_survive_reload_and_unload(
    hard_models: Path, serve: Serve, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    place = tmp_path / "model"
    put_decoding(hard_models / "a", place)
    server = serve({"images": place}, "--reload_interval=0").wait_ready()
    buffer = io.BytesIO()
    # Noise: a body above 256 KiB is decoded by a thread.
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (512, 512), np.uint8)).save(buffer, "PNG")
    file = buffer.getvalue()
    body = json.dumps({"instances": [{"b64": base64.b64encode(file).decode()}]}).encode()
    head = b"POST /v1/models/images:predict HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    message = messages.ModelInferRequest(model_name="images")
    message.inputs.add(name="image", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(file).to_bytes(4, "little") + file)
    seen: Counter[Any] = Counter()

    async def send_half(count: int) -> Any:
        started = server.sum_metric("mindsporeserver_requests_total", protocol="v1")
        clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
        for _, writer in clients:
            writer.write(head + body[: len(body) // 2])
        await asyncio.to_thread(
            eventually, lambda: server.sum_metric("mindsporeserver_requests_total", protocol="v1") >= started + count
        )
        return clients

    async def send_rest(clients: Any) -> list[bytes]:
        for _, writer in clients:
            writer.write(body[len(body) // 2 :])
        answers = [await asyncio.wait_for(reader.readuntil(b"\r\n"), 30) for reader, _ in clients]
        for _, writer in clients:
            writer.close()
        return answers

    async def run() -> None:
        over = False

        async def send_http() -> None:
            async with Connection(server.port) as connection:
                while not over:
                    seen[(await connection.send(head + body)).status] += 1

        async def send_grpc() -> None:
            async with GrpcConnection(server.grpc_port) as connection:
                while not over:
                    seen[(await connection.call(INFER, message.SerializeToString())).code] += 1

        tasks = [asyncio.create_task(send()) for send in (send_http, send_http, send_http, send_grpc)]
        try:
            for turn in range(RELOADS):
                slow = await send_half(2)
                put_decoding(hard_models / "ba"[turn % 2], place)
                assert (await asyncio.to_thread(server.post, "/v2/repository/models/images/load"))[0] == 200
                assert set(await send_rest(slow)) == {b"HTTP/1.1 200 OK\r\n"}
        finally:
            over = True
            await asyncio.gather(*tasks)
        assert set(seen) == {200, "OK"}, seen
        slow = await send_half(4)
        assert (await asyncio.to_thread(server.post, "/v2/repository/models/images/unload"))[0] == 200
        assert set(await send_rest(slow)) == {b"HTTP/1.1 200 OK\r\n"}

    asyncio.run(run())
    assert server.post("/v1/models/images:predict", {"instances": []})[0] == 404
    assert "Traceback" not in server.read_log()


@pytest.mark.parametrize("how", ["a bit", "half a signature", "signed garbage"])
def test_damaged_bundle_at_start(hard_models: Path, serve: Serve, tmp_path: Path, how: str) -> None:
    place = tmp_path / "model"
    put(hard_models / "a", place)
    damage(place, how)
    server = serve({"digits": place})
    assert server.process.wait(60) == 2, server.read_log()
    log = server.read_log()
    assert str(place) in log, log
    assert "Traceback" not in log, log


def test_damaged_bundle_at_reload(
    hard_models: Path, serve: Serve, tmp_path: Path, answers: dict[str, Any], eventually: Any
) -> None:
    place, broken = tmp_path / "live" / "model", tmp_path / "broken"
    put(hard_models / "a", place)
    server = serve({"digits": place}, "--reload_interval=0.1", "--max_batch=4").wait_ready()

    def tell() -> str:
        async def ask() -> str:
            async with Client(server.port, server.grpc_port, "digits") as client:
                return await _tell_which(client, answers, 0)

        return asyncio.run(ask())

    def count_failed() -> float:
        return server.sum_metric("mindsporeserver_loads_total", result="failed")

    for how in DAMAGES:
        put(hard_models / "b", broken)
        damage(broken, how)
        put(broken, place)
        failed = count_failed()
        status, body, _ = server.post("/v2/repository/models/digits/load")
        assert (status, str(place) in body["error"]) == (503, True), (how, status, body)
        assert count_failed() > failed, how
        assert tell() == "a", how
        assert server.get("/v2/health/ready")[0] == server.get("/v2/models/digits/ready")[0] == 200
    # Polling does not change it.
    eventually(lambda: "changed on disk and not loaded" in server.read_log())
    failed = count_failed()
    put(broken, place)
    eventually(lambda: count_failed() > failed)
    assert tell() == "a"
    put(hard_models / "b", place)
    eventually(lambda: tell() == "b")
    assert server.post("/v2/repository/models/digits/load")[0] == 200
    shutil.rmtree(place)
    assert server.post("/v2/repository/models/digits/load")[0] == 404
    assert tell() == "b"
    put(hard_models / "a", place)
    eventually(lambda: tell() == "a")
    index = json.loads(server.get("/v2/repository/index")[1])
    assert [(model["name"], model["state"]) for model in index] == [("digits", "READY")]
    assert "Traceback" not in server.read_log()


def _fill_the_disk() -> None:
    # As on a full disk, no file can grow any more; Python ignores the signal and gets an error.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_full_disk_and_no_home(
    hard_models: Path, serve: Serve, tmp_path: Path, answers: dict[str, Any], eventually: Any
) -> None:
    place = tmp_path / "live" / "model"
    put(hard_models / "a", place)
    server = serve(
        {"digits": place, "loose": hard_models / "loose"},
        "--reload_interval=0.1",
        "--max_batch=4",
        environment={"HOME": "/nowhere", "TMPDIR": "/nowhere", "XDG_CACHE_HOME": "/nowhere"},
        prepare=_fill_the_disk,
    ).wait_ready()

    async def ask() -> Counter[str]:
        async with Client(server.port, server.grpc_port, "digits") as client:
            return Counter([await _tell_which(client, answers, index) for index in range(16)])

    assert asyncio.run(ask()) == {"a": 16}
    # A graph that does not compile makes MindSpore write files.
    status, body, _ = server.post("/v1/models/loose:predict", {"instances": [[1, 2, 3, 4, 5]]})
    assert (status, bool(body["error"])) == (400, True), body
    put(hard_models / "b", place)
    eventually(lambda: asyncio.run(ask()) == {"b": 16})
    assert server.get("/metrics")[0] == 200
    assert server.stop() == 0
    assert "Traceback" not in server.read_log()


def test_mindspore_that_cannot_be_imported(hard_models: Path, serve: Serve, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "mindspore"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libmindspore_core.so: cannot open shared object file')")
    paths = os.pathsep.join(filter(None, [str(broken.parent), os.environ.get("PYTHONPATH")]))
    server = serve({"digits": hard_models / "a"}, environment={"PYTHONPATH": paths})
    assert server.process.wait(60) != 0, server.read_log()
    assert "libmindspore_core.so" in server.read_log()
