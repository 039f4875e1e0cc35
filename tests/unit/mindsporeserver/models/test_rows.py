"""A table's rows by column names, by every protocol of a real server: the features are those of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from kfp_mindspore.data import read_samples
from kfp_mindspore.formats.bundle import ModelBundle
from tests.support.table_models import export_table, make_rows, write_csv

pytestmark = pytest.mark.mindspore

FIELDS = ("age", "income", "garden", "city")
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mean": ({"missing": "mean", "ids": ["id"]}, {}),
    "strict": ({"missing": "drop", "ids": ["id"]}, {"extra_columns": "refuse"}),
    "plain": ({"missing": 0, "features": ["age", "income"], "preprocessing": "none"}, {}),
}
ROW = {"age": 41, "income": 3.25, "garden": True, "city": "Oslo"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    write_csv(root / "table.csv", make_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "support"))
        for name, (options, changes) in MODELS.items():
            export_table(root, name, options, **changes)
    return root


@pytest.fixture(scope="module")
def served(tables: Path, start_server: Callable[..., Any]) -> Any:
    first, *others = [f"{name}={tables / name}" for name in MODELS]
    server = start_server(first, "mean", *[f"--model_dir={model}" for model in others])
    server.wait("/v2/health/ready", 120)
    return server


def predict_v1(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    status, found, _ = server.request(f"/v1/models/{name}:predict", {"instances": rows})
    assert status == 200, found
    return np.array(found["predictions"], np.float32)


def describe_columns(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tensors = []
    for column in rows[0]:
        values = [row[column] for row in rows]
        kind = next((type(value) for value in values if value is not None), float)
        datatype = {str: "BYTES", float: "FP64", int: "INT64", bool: "BOOL"}[kind]
        tensors.append({"name": column, "datatype": datatype, "shape": [len(rows)], "data": values})
    return tensors


def predict_v2(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    status, found, _ = server.request(f"/v2/models/{name}/infer", {"inputs": describe_columns(rows)})
    assert status == 200, found
    (output,) = found["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def to_content(tensor: dict[str, Any]) -> bytes:
    if tensor["datatype"] == "BYTES":
        texts = [text.encode() for text in tensor["data"]]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    dtype = {"FP64": "<f8", "INT64": "<i8", "BOOL": "?"}[tensor["datatype"]]
    return np.array([np.nan if value is None else value for value in tensor["data"]], dtype).tobytes()


def predict_binary(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    tensors, contents = describe_columns(rows), []
    for tensor in tensors:
        contents.append(to_content(tensor))
        del tensor["data"]
        tensor |= {"shape": [len(rows), 1], "parameters": {"binary_data_size": len(contents[-1])}}
    head = json.dumps({"inputs": tensors}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    status, found, _ = server.request(f"/v2/models/{name}/infer", head + b"".join(contents), headers)
    assert status == 200, found
    (output,) = found["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def call_grpc(server: Any, name: str, tensors: list[dict[str, Any]]) -> Any:
    inputs = [
        pb.ModelInferRequest.InferInputTensor(name=one["name"], datatype=one["datatype"], shape=one["shape"])
        for one in tensors
    ]
    request = pb.ModelInferRequest(model_name=name, inputs=inputs, raw_input_contents=map(to_content, tensors))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        return GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)


def predict_grpc(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    answer = call_grpc(server, name, describe_columns(rows))
    return np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(answer.outputs[0].shape)


PROTOCOLS = [predict_v1, predict_v2, predict_binary, predict_grpc]


@pytest.mark.parametrize("predict", PROTOCOLS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_become_features_of_training(served: Any, tables: Path, name: str, predict: Any) -> None:
    layout = ModelBundle.open(tables / name).signature.rows
    assert layout is not None
    rows, expected = [], []
    for split in ("train", "test"):
        samples = read_samples(tables / f"{name}-data", split)
        expected.append(next(iter(samples.inputs.values())))
        # The table's rows in the split's order, found by the target.
        by_price = {np.float32(row["price"]): row for row in make_rows()}
        rows += [by_price[np.float32(price)] for price in samples.target]
    keep = [*layout.columns, *([] if name == "plain" else ["id"]), "price"]
    rows = [{field: row[field] for field in keep} for row in rows]
    np.testing.assert_allclose(predict(served, name, rows), np.concatenate(expected), atol=1e-6)


@pytest.mark.parametrize("predict", PROTOCOLS)
def test_rows_equal_packed_request_in_any_column_order(served: Any, predict: Any) -> None:
    packed = {"features_numbers": [41, 3.25, 1], "city": "Oslo"}
    expected = predict_v1(served, "mean", [packed])
    np.testing.assert_array_equal(predict(served, "mean", [ROW]), expected)
    np.testing.assert_array_equal(predict(served, "mean", [dict(reversed({**ROW, "new": 1}.items()))]), expected)


def test_missing_values_follow_datasets_rule(served: Any, tables: Path) -> None:
    layout = ModelBundle.open(tables / "mean").signature.rows
    assert layout is not None
    mean = dict(zip(layout.inputs[0].columns, layout.inputs[0].fill, strict=True))["income"]
    expected = predict_v1(served, "mean", [{**ROW, "income": mean}])
    for predict in PROTOCOLS:
        found = predict(served, "mean", [{**ROW, "income": None}, {**ROW, "income": 1.0}])
        np.testing.assert_allclose(found[:1], expected, rtol=1e-6)
    for predict in (predict_v1, predict_v2):
        found = predict(served, "mean", [{**ROW, "city": None}, {**ROW, "city": ""}, ROW])
        assert (found[:, 3:].tolist(), found[0].tolist()) == ([[0, 0, 0], [0, 0, 0], [0, 1, 0]], found[1].tolist())


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("mean", {"age": 41, "income": 3, "garden": True}, "column 'city': missing, got 'age', 'income', 'garden'"),
        ("mean", {**ROW, "age": "old"}, "column 'age': "),
        ("mean", {**ROW, "city": 3}, "column 'city': "),
        (
            "strict",
            {**ROW, "income": None},
            "column 'income': the value is missing, and the dataset's rule missing=drop",
        ),
        ("strict", {**ROW, "weight": 3}, "column 'weight': unknown, expected 'age', 'income', 'garden', 'city'"),
    ],
)
def test_wrong_rows_are_refused_by_column(served: Any, name: str, row: dict[str, Any], message: str) -> None:
    status, found, _ = served.request(f"/v1/models/{name}:predict", {"instances": [ROW, row]})
    assert (status, message in found["error"]) == (400, True), found
    tensors = describe_columns([row, row])
    status, found, _ = served.request(f"/v2/models/{name}/infer", {"inputs": tensors})
    assert (status, message in found["error"]) == (400, True), found
    with pytest.raises(grpc.RpcError) as caught:
        call_grpc(served, name, tensors)
    assert (caught.value.code(), message in caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_packed_form_names_its_columns(served: Any) -> None:
    packed = {"features_numbers": [41, 3.25], "city": "Oslo"}
    status, found, _ = served.request("/v1/models/mean:predict", {"instances": [packed]})
    message = "input 'features_numbers': shape must be (-1, 3) (age, income, garden), got (1, 2)"
    assert (status, found["error"]) == (400, message)
    status, found, _ = served.request("/v1/models/mean:predict", {"instances": [[41, 3.25, 1, "Oslo"]]})
    assert status == 400
    assert "or the columns 'age', 'income', 'garden', 'city'" in found["error"]


def test_metadata_names_columns_in_order(served: Any, tables: Path) -> None:
    _, found, _ = served.request("/v2/models/mean")
    assert found["rows"] == ModelBundle.open(tables / "mean").signature.rows.to_dict()
    assert [one.get("columns", one.get("column")) for one in found["rows"]["inputs"]] == [
        ["age", "income", "garden"],
        "city",
    ]
    assert [spec["name"] for spec in found["inputs"]] == ["features_numbers", "city"]
