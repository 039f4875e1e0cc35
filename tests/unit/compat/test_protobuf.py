"""MindSpore beside other users of protobuf, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kfp_mindspore.compat.protobuf import IMPLEMENTATION_VARIABLE, install

UNPATCHED = """
import json, os
from google.protobuf.internal import api_implementation
message = ""
try:
    import mindspore
except TypeError as error:
    message = str(error)
print(json.dumps({"implementation": api_implementation.Type(), "message": message}), flush=True)
os._exit(0)  # a half-imported MindSpore crashes in its finalizers
"""

IMPORT_ALL = """
import importlib, json, os, sys
import kfp_mindspore
for name in sys.argv[1:]:
    importlib.import_module(name)
from google.protobuf.internal import api_implementation
from mindspore.train import anf_ir_pb2, checkpoint_pb2, lineage_pb2, mind_ir_pb2, node_strategy_pb2, print_pb2
from mindspore.train import profiling_parallel_pb2, summary_pb2
checkpoint = checkpoint_pb2.Checkpoint()
checkpoint.value.add(tag="weight").tensor.CopyFrom(
    checkpoint_pb2.TensorProto(dims=[2], tensor_type="Float32", tensor_content=b"12345678"))
event = summary_pb2.Event(wall_time=1.0, graph_def=anf_ir_pb2.GraphProto(name="g"))
print(json.dumps({
    "implementation": api_implementation.Type(),
    "variable": os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"),
    "tag": checkpoint_pb2.Checkpoint.FromString(checkpoint.SerializeToString()).value[0].tag,
    "graph": summary_pb2.Event.FromString(event.SerializeToString()).graph_def.name,
    "float32": mind_ir_pb2.TensorProto.DataType.Value("FLOAT"),
    "enum": anf_ir_pb2.DataType.Name(anf_ir_pb2.DT_FLOAT32),
}))
"""


def run(script: str, *arguments: str, **variables: str) -> dict[str, object]:
    environment = {key: value for key, value in os.environ.items() if key != IMPLEMENTATION_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**environment, **variables, "GLOG_v": "4"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.mindspore
def test_fault_upstream_mindspore_cannot_be_imported_after_protobuf() -> None:
    result = run(UNPATCHED)
    assert result["implementation"] == "upb"
    assert "Descriptors cannot be created directly" in str(result["message"]), "fixed upstream: delete the patch"


@pytest.mark.mindspore
def test_upb_is_used_by_mindspore_and_by_libraries_before_and_after_it() -> None:
    assert run(IMPORT_ALL, "kfp", "mindspore", "kserve") == {
        "implementation": "upb",
        "variable": None,
        "tag": "weight",
        "graph": "g",
        "float32": 1,
        "enum": "DT_FLOAT32",
    }


@pytest.mark.mindspore
def test_implementation_of_user_is_kept() -> None:
    result = run(IMPORT_ALL, "mindspore", **{IMPLEMENTATION_VARIABLE: "python"})
    assert (result["implementation"], result["variable"]) == ("python", "python")


def test_standalone_messages_need_no_mindspore() -> None:
    script = """
import json, sys
from kfp_mindspore.compat.protobuf import load_standalone
model = load_standalone("mindspore.train.mind_ir_pb2").ModelProto(producer_name="x")
print(json.dumps({"producer": model.producer_name, "mindspore": "mindspore" in sys.modules}))
"""
    assert run(script) == {"producer": "x", "mindspore": False}


def test_installing_twice_adds_one_finder() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before


def test_import_of_package_imports_no_library() -> None:
    script = """
import json, sys
before = set(sys.modules)
import kfp_mindspore
heavy = {"google", "kfp", "kserve", "mindspore", "numpy", "click", "yaml"}
print(json.dumps(sorted(heavy & (set(sys.modules) - before))))
"""
    assert run(script) == []
