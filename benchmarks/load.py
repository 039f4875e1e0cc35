"""Compiled load generators in processes of their own: wrk for HTTP, ghz for gRPC; and the bodies that they send."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE = Path(__file__).parent
SCRIPT = HERE / "peers" / "serving" / "post.lua"
GHZ_VERSION = "v0.120.0"
GHZ_DIRECTORY = HERE / ".environments" / "bin"
MODEL = "model"
GET_GHZ = f"GOBIN={GHZ_DIRECTORY} go install github.com/bojand/ghz/cmd/ghz@{GHZ_VERSION}"
GET_WRK = "apt-get install wrk"


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Args:
        path: Where it is posted.
        body: What is posted.
        json_length: Length of the JSON in front of binary tensors; 0 when there are none.
    """

    path: str
    body: bytes
    json_length: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """Its headers."""
        if self.json_length:
            return {
                "Content-Type": "application/octet-stream",
                "Inference-Header-Content-Length": str(self.json_length),
            }
        return {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Load:
    """What a generator saw.

    Args:
        requests: How many were answered as they should be.
        seconds: How long it took.
        failures: How many were answered otherwise or not at all.
        p50_ms: Median time of a request.
        p99_ms: 99th percentile.
    """

    requests: int
    seconds: float
    failures: int
    p50_ms: float
    p99_ms: float


def find_wrk() -> str:
    """Return wrk's path, empty when there is none."""
    return shutil.which("wrk") or ""


def find_ghz() -> str:
    """Return ghz' path, empty when there is none."""
    places = [str(GHZ_DIRECTORY), os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")]
    return shutil.which("ghz", path=os.pathsep.join(places)) or ""


def make_v1(images: NDArray[np.float32]) -> Request:
    """Return KServe's V1 request."""
    return Request(f"/v1/models/{MODEL}:predict", _dump({"instances": images.tolist()}))


def make_v2(images: NDArray[np.float32], name: str) -> Request:
    """Return a V2 request whose tensor is JSON."""
    tensor = {"name": name, "shape": list(images.shape), "datatype": "FP32", "data": images.ravel().tolist()}
    return Request(f"/v2/models/{MODEL}/infer", _dump({"inputs": [tensor]}))


def make_v2_binary(images: NDArray[np.float32], name: str) -> Request:
    """Return a V2 request whose tensors are binary in both directions."""
    content = images.tobytes()
    tensor = {
        "name": name,
        "shape": list(images.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(content)},
    }
    header = _dump({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return Request(f"/v2/models/{MODEL}/infer", header + content, len(header))


def make_bento(images: NDArray[np.float32]) -> Request:
    """Return what bento.py takes."""
    return Request("/predict", _dump({"images": images.tolist()}))


def make_ray(images: NDArray[np.float32]) -> Request:
    """Return what ray_serve.py takes, one image."""
    return Request("/", _dump({"image": images[0].tolist()}))


def read_answer(headers: Any, content: bytes) -> NDArray[np.float32]:
    """Return the logits of an answer in any of the forms."""
    length = int(headers.get("Inference-Header-Content-Length") or 0)
    answer = json.loads(content[:length] if length else content)
    if isinstance(answer, list):
        return np.array(answer, np.float32)
    if "predictions" in answer:
        return np.array(answer["predictions"], np.float32)
    if "prediction" in answer:
        return np.array([answer["prediction"]], np.float32)
    output = answer["outputs"][0]
    data = np.frombuffer(content[length:], np.float32) if length else np.array(output["data"], np.float32)
    return data.reshape(output["shape"])


def run_wrk(port: int, requests: Sequence[Request], connections: int, seconds: float, scratch: Path) -> Load:
    """Post requests in turn over some connections, each of which waits for its answer.

    Args:
        port: On this machine.
        requests: Of the same path and form.
        connections: How many.
        seconds: How long, a second at least; wrk knows whole ones only.
        scratch: Where bodies are written.
    """
    files = []
    for index, request in enumerate(requests):
        files.append(scratch / f"body-{index}")
        files[-1].write_bytes(request.body)
    first = requests[0]
    argv = [
        find_wrk(),
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout=20s",
        f"-s{SCRIPT}",
        f"http://127.0.0.1:{port}",
        "--",
        first.path,
        first.headers["Content-Type"],
        str(first.json_length),
        *map(str, files),
    ]
    seen = _run(argv, first.path)
    failures = seen["refused"] + seen["broken"]
    return Load(seen["requests"] - seen["refused"], seen["seconds"], failures, seen["p50_ms"], seen["p99_ms"])


def run_ghz(port: int, images: NDArray[np.float32], name: str, streams: int, seconds: float, scratch: Path) -> Load:
    """Call ModelInfer with raw contents over one connection with some streams, each of which waits for its answer."""
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as protocol

    protoset, body = scratch / "inference.protoset", scratch / "body.grpc"
    if not protoset.is_file():
        from google.protobuf.descriptor_pb2 import FileDescriptorSet

        descriptors = FileDescriptorSet()
        protocol.DESCRIPTOR.CopyToProto(descriptors.file.add())
        protoset.write_bytes(descriptors.SerializeToString())
    body.write_bytes(make_grpc(images, name).SerializeToString())
    argv = [
        find_ghz(),
        "--insecure",
        f"--protoset={protoset}",
        "--call=inference.GRPCInferenceService/ModelInfer",
        f"--binary-file={body}",
        f"--concurrency={streams}",
        "--connections=1",
        f"--duration={seconds}s",
        "--duration-stop=wait",
        "--format=json",
        f"127.0.0.1:{port}",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ghz left with {done.returncode}: {done.stderr[-500:]}")
    seen = json.loads(done.stdout)
    answered = seen["statusCodeDistribution"].get("OK", 0)
    latencies = {entry["percentage"]: entry["latency"] / 1e6 for entry in seen["latencyDistribution"] or ()}
    return Load(answered, seen["total"] / 1e9, seen["count"] - answered, latencies.get(50, 0.0), latencies.get(99, 0.0))


def make_grpc(images: NDArray[np.float32], name: str) -> Any:
    """Return a ModelInferRequest with raw contents."""
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as protocol

    request = protocol.ModelInferRequest(model_name=MODEL, raw_input_contents=[images.tobytes()])
    request.inputs.add(name=name, datatype="FP32", shape=images.shape)
    return request


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _run(argv: Sequence[str], what: str) -> dict[str, Any]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{argv[0]} {what} left with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    seen = json.loads(lines[-1])
    assert isinstance(seen, dict)
    return seen
