"""Load generators (wrk for HTTP, ghz for gRPC) and the requests that they send."""

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
from environments import ENVIRONMENTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE = Path(__file__).parent
SCRIPT = HERE / "peers" / "serving" / "post.lua"
MODEL = "model"


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Args:
        path: Path of the endpoint.
        body: The body.
        json_length: Length in bytes of the JSON before binary tensors; 0 without binary tensors.
    """

    path: str
    body: bytes
    json_length: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """The request's headers."""
        if not self.json_length:
            return {"Content-Type": "application/json"}
        return {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(self.json_length),
        }


@dataclass(frozen=True)
class Load:
    """Result of one run of a load generator.

    Args:
        requests: Number of successful responses.
        seconds: Duration.
        failures: Number of other responses and of broken connections.
        p50_ms: Median latency.
        p99_ms: 99th percentile of the latency.
    """

    requests: int
    seconds: float
    failures: int
    p50_ms: float
    p99_ms: float


def check_tools() -> str:
    """Return how to install a missing load generator; empty when all are installed."""
    missing = [] if shutil.which("wrk") else ["wrk is missing: apt-get install wrk"]
    if not shutil.which("ghz", path=_search_path()):
        target = f"GOBIN={ENVIRONMENTS / 'bin'}"
        missing.append(f"ghz is missing: {target} go install github.com/bojand/ghz/cmd/ghz@v0.120.0")
    return "\n".join(missing)


def make_request(protocol: str, images: NDArray[np.float32], name: str) -> Request:
    """Return a request.

    Args:
        protocol: `v1`, `v2`, `binary` (V2 with binary tensors), `bento` (bento.py), `ray` (ray_serve.py) or `mosec`
            (mosec_server.py); the latter two send the first image only.
        images: Images of shape (N, channels, height, width).
        name: Name of the model's input.
    """
    if protocol == "v1":
        return Request(f"/v1/models/{MODEL}:predict", _dump({"instances": images.tolist()}))
    if protocol in ("bento", "ray", "mosec"):
        path = {"bento": "/predict", "ray": "/", "mosec": "/inference"}[protocol]
        return Request(
            path, _dump({"images": images.tolist()} if protocol == "bento" else {"image": images[0].tolist()})
        )
    tensor: dict[str, Any] = {"name": name, "shape": list(images.shape), "datatype": "FP32"}
    path = f"/v2/models/{MODEL}/infer"
    if protocol == "v2":
        return Request(path, _dump({"inputs": [{**tensor, "data": images.ravel().tolist()}]}))
    content = images.tobytes()
    tensor["parameters"] = {"binary_data_size": len(content)}
    header = _dump({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    return Request(path, header + content, len(header))


def read_response(headers: Any, content: bytes) -> NDArray[np.float32]:
    """Return the logits in a response to any request of `make_request`."""
    length = int(headers.get("Inference-Header-Content-Length") or 0)
    response = json.loads(content[:length] if length else content)
    if isinstance(response, list):
        return np.array(response, np.float32)
    if "predictions" in response:
        rows = response["predictions"]
        # A bundle with preprocessing has the label beside the logits.
        return np.array([row["output"] if isinstance(row, dict) else row for row in rows], np.float32)
    if "prediction" in response:
        return np.array([response["prediction"]], np.float32)
    output = response["outputs"][0]
    data = np.frombuffer(content[length:], np.float32) if length else np.array(output["data"], np.float32)
    return data.reshape(output["shape"])


def run_wrk(port: int, requests: Sequence[Request], connections: int, seconds: float, scratch: Path) -> Load:
    """Send requests in turn over keep-alive connections, each with one request at a time.

    Args:
        port: Port on 127.0.0.1.
        requests: Requests to the same endpoint.
        connections: Number of connections.
        seconds: Duration, rounded to whole seconds.
        scratch: Directory for the bodies.
    """
    files = [scratch / f"body-{index}" for index in range(len(requests))]
    for file, request in zip(files, requests, strict=True):
        file.write_bytes(request.body)
    first = requests[0]
    argv = ["wrk", "--threads=1", f"--connections={connections}", f"--duration={max(1, round(seconds))}s"]
    argv += [f"--script={SCRIPT}", "--timeout=30s", f"http://127.0.0.1:{port}{first.path}", "--"]
    argv += [first.path, first.headers["Content-Type"], str(first.json_length), *map(str, files)]
    seen = json.loads(_run(argv).splitlines()[-1])
    failures = seen["refused"] + seen["broken"]
    return Load(seen["requests"] - seen["refused"], seen["seconds"], failures, seen["p50_ms"], seen["p99_ms"])


def run_ghz(port: int, images: NDArray[np.float32], name: str, streams: int, seconds: float, scratch: Path) -> Load:
    """Call ModelInfer with raw contents on one connection, with one call at a time on each of `streams` streams."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as protocol

    protoset, body = scratch / "inference.protoset", scratch / "body.grpc"
    descriptors = FileDescriptorSet()
    protocol.DESCRIPTOR.CopyToProto(descriptors.file.add())
    protoset.write_bytes(descriptors.SerializeToString())
    body.write_bytes(make_grpc(images, name).SerializeToString())
    ghz = shutil.which("ghz", path=_search_path()) or "ghz"
    argv = [ghz, "--insecure", f"--protoset={protoset}", "--call=inference.GRPCInferenceService/ModelInfer"]
    argv += [f"--binary-file={body}", f"--concurrency={streams}", "--connections=1", f"--duration={seconds}s"]
    seen = json.loads(_run([*argv, "--duration-stop=wait", "--format=json", f"127.0.0.1:{port}"]))
    successes = seen["statusCodeDistribution"].get("OK", 0)
    latencies = {entry["percentage"]: entry["latency"] / 1e6 for entry in seen["latencyDistribution"] or ()}
    return Load(
        successes, seen["total"] / 1e9, seen["count"] - successes, latencies.get(50, 0.0), latencies.get(99, 0.0)
    )


def make_grpc(images: NDArray[np.float32], name: str) -> Any:
    """Return a ModelInferRequest with raw contents."""
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as protocol

    request = protocol.ModelInferRequest(model_name=MODEL, raw_input_contents=[images.tobytes()])
    request.inputs.add(name=name, datatype="FP32", shape=images.shape)
    return request


def _search_path() -> str:
    return os.pathsep.join([str(ENVIRONMENTS / "bin"), os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")])


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _run(argv: Sequence[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise RuntimeError(f"{argv[0]} exited with {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout
