"""A server's OpenAPI document, read by a generator of clients, and its client's request."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference.rest import request_json
from kfp_mindspore.inference.smoke import read_example_requests
from tests.support.ports import reserve_port
from tests.support.serving.model_servers import start_server
from tests.unit.mindsporeserver.conftest import Server

pytestmark = [pytest.mark.peers, pytest.mark.mindspore, pytest.mark.timeout(600)]

PEER = Path(__file__).parent / "generated_client.py"


def test_generated_client_predicts(peers: Path, models: Path, tmp_path: Path) -> None:
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    flags = [f"--http_port={port}", "--enable_grpc=false", "--enable_docs_url=true"]
    arguments = ["--model_name=digits", f"--model_dir={models / 'free'}", *flags]
    process = start_server(arguments, tmp_path, tmp_path / "log")
    try:
        Server(process, port, 0, tmp_path / "log").wait("/v2/health/ready")
        (tmp_path / "openapi.json").write_text(json.dumps(request_json("GET", f"{url}/openapi.json", timeout=30)))
        words = [
            peers.with_name("openapi-python-client"),
            "generate",
            "--path",
            "openapi.json",
            "--output-path",
            "client",
        ]
        done = subprocess.run([*words, "--meta", "none"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Cannot parse" not in done.stdout + done.stderr
        verified = read_example_requests(ModelBundle.open(models / "free"))
        (images,), (outputs,) = verified.inputs.values(), verified.outputs.values()
        (tmp_path / "image.json").write_text(json.dumps(images[:1].tolist()))
        called = subprocess.run([peers, PEER, url], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert called.returncode == 0, called.stderr
        for scores in json.loads(called.stdout):
            assert scores == pytest.approx(outputs[0].tolist(), abs=1e-5)
    finally:
        process.kill()
        process.wait()
