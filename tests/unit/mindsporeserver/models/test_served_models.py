"""Models with a transform, encrypted ones and such with a free length, served together by a real server."""

from __future__ import annotations

import base64
import io
import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.bundle import TRANSFORM_FILE, ModelBundle, write_bundle
from kfp_mindspore.inference import run_smoke_test

pytestmark = pytest.mark.mindspore

KEY = bytes(range(32))
BROKEN = """
import time
from kfp_mindspore.transform import *

class Broken(Transform):
    inputs = (TensorSpec("text", BYTES, (-1,)),)

    def preprocess(self, inputs):
        if inputs["text"][0] == b"bad":
            raise TransformInputError("text: must not be 'bad'")
        if inputs["text"][0] == b"exit":
            raise SystemExit(1)
        while inputs["text"][0] == b"sleep":
            time.sleep(0.1)
        raise KeyError("/a/secret/path")

transform = Broken()
"""


def rewrite(source: Path, target: Path, code: str) -> Path:
    """Write a bundle again with a transform that was not tried."""
    bundle = ModelBundle.open(source)
    with write_bundle(target) as writer:
        shutil.copy(bundle.mindir, writer.directory)
        (writer.directory / TRANSFORM_FILE).write_text(code)
        writer.sign(bundle.signature)
    return target


@pytest.fixture(scope="module")
def served(models: Path, start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("served")
    key = root / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    broken = rewrite(models / "free", root / "broken", BROKEN)
    directories = {name: models / name for name in ("transformed", "encrypted", "sequence", "free")} | {
        "broken": broken
    }
    flags = [f"--model_dir={name}={path}" for name, path in directories.items() if name != "transformed"]
    server = start_server(
        f"transformed={models / 'transformed'}",
        "transformed",
        *flags,
        "--allow_model_code=true",
        f"--model_key_file={key}",
        "--max_batch=4",
        "--transform_timeout=5",
    )
    server.wait("/v2/health/ready", 120)
    return server


def encode(image: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.round(image[0] * 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["transformed", "encrypted", "sequence", "free"])
def test_outputs_equal_those_of_export(served: Any, models: Path, name: str) -> None:
    samples = 6 if name == "sequence" else 32
    report = run_smoke_test(f"http://127.0.0.1:{served.port}", name, models / name, samples=samples)
    assert report.max_abs_diff <= 1e-5


def test_metadata_describes_transform(served: Any) -> None:
    _, found, _ = served.request("/v2/models/transformed")
    assert [(spec["name"], spec["datatype"], spec["shape"]) for spec in found["inputs"]] == [("image", "BYTES", [-1])]
    assert [(spec["name"], spec["datatype"], spec["shape"]) for spec in found["outputs"]] == [
        ("classes", "BYTES", [-1, 3]),
        ("scores", "FP32", [-1, 3]),
    ]


def test_files_by_each_protocol(served: Any, models: Path) -> None:
    test = read_samples(models / "dataset", "test")
    images, labels = test.inputs["image"], test.target
    files = [encode(image) for image in images[:9]]
    texts = [{"b64": base64.b64encode(file).decode()} for file in files]
    status, found, _ = served.request("/v1/models/transformed:predict", {"instances": texts})
    assert status == 200
    best = [row["classes"][0] for row in found["predictions"]]
    assert np.mean([int(text) == label for text, label in zip(best, labels, strict=False)]) > 0.7
    content = b"".join(struct.pack("<I", len(file)) + file for file in files)
    head = (
        b'{"inputs": [{"name": "image", "shape": [9], "datatype": "BYTES", "parameters": {"binary_data_size": %d}}]}'
        % len(content)
    )
    status, found, _ = served.request(
        "/v2/models/transformed/infer",
        head + content,
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))},
    )
    assert status == 200
    outputs = {output["name"]: output for output in found["outputs"]}
    assert outputs["classes"]["shape"] == [9, 3]
    assert outputs["classes"]["data"][::3] == best


def infer(served: Any, name: str, text: str) -> tuple[int, str]:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    status, found, _ = served.request(f"/v2/models/{name}/infer", {"inputs": [tensor]})
    return status, str(found)


def test_failures_of_transform_and_of_its_client(served: Any) -> None:
    status, found, _ = served.request("/v1/models/transformed:predict", {"instances": ["no image"]})
    assert (status, "must be a whole PNG or JPEG file" in str(found) and "got 8 bytes" in str(found)) == (400, True)
    status, text = infer(served, "broken", "bad")
    assert (status, "text: must not be 'bad'" in text) == (400, True)
    for cause, kind in (("anything", "KeyError"), ("exit", "SystemExit")):
        status, text = infer(served, "broken", cause)
        assert status == 500
        assert f"transform.py: preprocess failed with {kind}" in text
        assert "secret" not in text
        assert "Traceback" not in text
    served.wait_for_log("/a/secret/path")
    assert served.request("/v2/health/ready")[0] == 200


def test_transform_that_never_returns_delays_no_other_request(served: Any) -> None:
    with ThreadPoolExecutor(3) as pool:
        stuck = [pool.submit(infer, served, "broken", "sleep") for _ in range(3)]
        for answer in stuck:
            status, text = answer.result()
            assert (status, "its transform did not return in 5 s" in text) == (500, True)
    assert infer(served, "broken", "bad")[0] == 400
    served.wait_for_log("model broken: run_preprocess did not return in 5 s; its thread is abandoned")


def test_length_over_largest_size_gets_400(served: Any) -> None:
    for length, expected in ((64, 200), (65, 400)):
        row = {"ids": [1] * length, "mask": [1.0] * length}
        status, found, _ = served.request("/v1/models/sequence:predict", {"instances": [row]})
        assert status == expected
    assert "dimension 'tokens': must be at most 64, got 65" in str(found)


def test_index_outside_its_table_gets_400(served: Any) -> None:
    for value, expected in ((49, 200), (50, 400)):
        row = {"ids": [1, value], "mask": [1.0, 1.0]}
        status, found, _ = served.request("/v1/models/sequence:predict", {"instances": [row]})
        assert status == expected
    assert "input 'ids': values must be 0 to 49, got 50" in str(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("transformed", "the model directory contains code, which is not allowed"),
        ("encrypted", "encrypted"),
    ],
)
def test_server_without_permission_or_key_exits_with_reason(
    models: Path, start_server: Callable[..., Any], name: str, message: str
) -> None:
    assert "MINDSPORE_MODEL_KEY" not in os.environ
    server = start_server(models / name, name)
    assert server.process.wait(60) == 2
    assert message in server.log.read_text()
