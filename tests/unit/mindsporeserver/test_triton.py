"""Triton's repository, configuration and statistics by its own client, beside kserve's messages of the same names.

tritonclient runs in a process of its own: its messages and kserve's have the same names in protobuf's default pool.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import grpc
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from mindsporeserver import triton
from mindsporeserver.errors import InvalidRequestError

pytestmark = pytest.mark.mindspore

CLIENT = """
import json, sys
import numpy as np
from tritonclient.grpc import InferenceServerClient, InferenceServerException, InferInput

client = InferenceServerClient(sys.argv[1])
found = {}

def refuse(name, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except InferenceServerException as error:
        found[name] = [error.status(), error.message()]
    else:
        found[name] = ["OK", ""]

def infer(rows):
    tensor = InferInput("image", (rows, 1, 8, 8), "FP32")
    tensor.set_data_from_numpy(np.zeros((rows, 1, 8, 8), np.float32))
    return client.infer("digits", [tensor]).as_numpy("output").shape

found["index"] = client.get_model_repository_index(as_json=True)
found["config"] = client.get_model_config("digits", as_json=True)
found["infer"] = [infer(1), infer(3)]
found["statistics"] = client.get_inference_statistics("digits", as_json=True)
found["all"] = client.get_inference_statistics(as_json=True)
client.unload_model("digits")
found["unloaded"] = client.get_model_repository_index(as_json=True)
refuse("unready", client.get_model_config, "digits")
client.load_model("digits")
found["loaded"] = client.is_model_ready("digits")
refuse("missing", client.load_model, "nowhere")
refuse("overrides", client.load_model, "digits", config="{}")
refuse("files", client.load_model, "digits", config="{}", files={"file:1/model.mindir": b"a"})
refuse("memory", client.get_system_shared_memory_status)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(server: Any) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, f"127.0.0.1:{server.grpc_port}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_client_lists_and_changes_repository(found: Any) -> None:
    assert found["index"] == {"models": [{"name": "digits", "version": "1", "state": "READY"}]}
    assert found["unloaded"] == {"models": [{"name": "digits", "state": "UNAVAILABLE", "reason": "unloaded"}]}
    assert found["loaded"] is True


def test_client_reads_configuration(found: Any) -> None:
    assert found["config"]["config"] == {
        "name": "digits",
        "platform": "mindspore_mindir",
        "backend": "mindspore",
        "max_batch_size": 64,
        "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": ["1", "8", "8"]}],
        "output": [{"name": "output", "data_type": "TYPE_FP32", "dims": ["10"]}],
    }


def test_client_reads_statistics(found: Any) -> None:
    assert found["infer"] == [[1, 10], [3, 10]]
    (entry,) = found["statistics"]["model_stats"]
    assert (entry["name"], entry["version"]) == ("digits", "1")
    assert int(entry["inference_count"]) >= 4
    assert int(entry["execution_count"]) >= 2
    stats = entry["inference_stats"]
    for kind in ("success", "queue", "compute_infer"):
        assert int(stats[kind]["count"]) >= 2
        assert int(stats[kind]["ns"]) > 0
    assert found["all"]["model_stats"] == [entry]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("unready", "StatusCode.NOT_FOUND", "Model with name digits does not exist."),
        ("missing", "StatusCode.NOT_FOUND", "model 'nowhere': no such directory"),
        ("overrides", "StatusCode.INVALID_ARGUMENT", "load with overrides is not supported, got 'config'"),
        ("files", "StatusCode.INVALID_ARGUMENT", "load with overrides is not supported"),
        ("memory", "StatusCode.UNIMPLEMENTED", ""),
    ],
)
def test_refusals_have_code_of_other_clients(found: Any, name: str, code: str, message: str) -> None:
    assert (found[name][0], message in found[name][1]) == (code, True), found[name]


def test_kserves_messages_of_same_names_are_accepted(server: Any, found: Any) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        unloaded = stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="digits"), timeout=60)
        loaded = stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="digits"), timeout=60)
        tensor = pb.ModelInferRequest.InferInputTensor(name="image", shape=[1, 1, 8, 8], datatype="FP32")
        content = np.zeros((1, 1, 8, 8), np.float32).tobytes()
        infer = pb.ModelInferRequest(model_name="digits", inputs=[tensor], raw_input_contents=[content])
        stub.ModelInfer(infer, timeout=60)
    assert (unloaded.model_name, unloaded.isUnloaded) == ("digits", True)
    assert (loaded.model_name, loaded.isLoaded) == ("digits", True)


def test_name_of_model_in_each_message() -> None:
    ours = triton.RepositoryModelRequest
    assert (
        triton.get_model_name(ours.FromString(pb.RepositoryModelLoadRequest(model_name="a").SerializeToString())) == "a"
    )
    assert triton.get_model_name(ours(repository_name="r", model_name="b")) == "b"
    assert triton.get_model_name(ours(model_name="c", parameters=[{"key": "unload_dependents"}])) == "c"
    with pytest.raises(InvalidRequestError, match="got 'config'"):
        triton.get_model_name(ours(model_name="d", parameters=[{"key": "config"}]))
