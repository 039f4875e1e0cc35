"""A table's rows by column names, by every protocol of a real server: they become the features that training used."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from kfp_mindspore.cli.main import cli
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.inference import run_smoke_test
from kfp_mindspore.inference.predict import predict as predict_arrays
from kfp_mindspore.mindir.evaluate import read_model_samples
from tests.support.models.table_models import export_table, make_rows, write_csv

pytestmark = pytest.mark.mindspore

FIELDS = ("age", "income", "garden", "city")
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mean": ({"missing": "mean", "ids": ["id"]}, {}),
    "strict": ({"missing": "drop", "ids": ["id"]}, {"extra_columns": "refuse"}),
    "known": ({"missing": "mean", "ids": ["id"], "unknown": "refuse"}, {}),
    "plain": ({"missing": 0, "features": ["age", "income"], "preprocessing": "none"}, {}),
}
CODED = "coded"
ROW = {"age": 41, "income": 3.25, "garden": True, "city": "Oslo"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    write_csv(root / "table.csv", make_rows())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))
        for name, (options, changes) in MODELS.items():
            export_table(root, name, options, **changes)
        transform = Path(__file__).parents[3] / "support" / "models" / "table_transform.py"
        export_table(root, CODED, {"missing": "mean", "ids": ["id"]}, transform=transform)
    return root


@pytest.fixture(scope="module")
def served(tables: Path, start_server: Callable[..., Any]) -> Any:
    first, *others = [f"{name}={tables / name}" for name in (*MODELS, CODED)]
    flags = [f"--model_dir={model}" for model in others]
    server = start_server(first, "mean", "--allow_model_code=true", *flags)
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
def test_model_with_transform_code_accepts_rows(served: Any, predict: Any) -> None:
    rows = [{"garden": True, "price": 3, "income": 3.25, "age": 41, "city": "Oslo"}]
    np.testing.assert_allclose(predict(served, CODED, rows), [[4.1, 3.25, 0, 0, 1, 0]], rtol=1e-6)


def test_unknown_categories_are_named_and_counted(served: Any) -> None:
    def count() -> int:
        body = urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=30).read().decode()
        found = re.search(r'unknown_categories_total{input="city",model_name="mean"} (\d+)', body)
        return int(found.group(1)) if found else 0

    before = count()
    rows = [{**ROW, "city": "Atlantis"}, ROW, {**ROW, "city": "Eldorado"}]
    status, _, headers = served.request("/v1/models/mean:predict", {"instances": rows})
    assert (status, headers["x-unknown-categories"]) == (200, "city=2")
    _, answer, headers = served.request("/v2/models/mean/infer", {"inputs": describe_columns(rows)})
    assert headers["x-unknown-categories"] == answer["parameters"]["unknown_categories"] == "city=2"
    parameters = call_grpc(served, "mean", describe_columns(rows)).parameters
    assert parameters["unknown_categories"].string_param == "city=2"
    assert count() - before == 6
    _, answer, headers = served.request("/v2/models/mean/infer", {"inputs": describe_columns([ROW])})
    assert "x-unknown-categories" not in headers
    assert "parameters" not in answer
    assert not call_grpc(served, "mean", describe_columns([ROW])).parameters


def test_unknown_categories_are_refused_by_declaration(served: Any, tables: Path) -> None:
    rows = [ROW, {**ROW, "city": "Atlantis"}]
    message = "input 'city': row 1: unknown category 'Atlantis', not in the training data"
    for path, body in (
        ("/v1/models/known:predict", {"instances": rows}),
        ("/v2/models/known/infer", {"inputs": describe_columns(rows)}),
    ):
        status, answer, _ = served.request(path, body)
        assert (status, answer["error"]) == (400, message)
    with pytest.raises(grpc.RpcError, match=re.escape(message)):
        call_grpc(served, "known", describe_columns(rows))
    file = tables / "unknown.jsonl"
    file.write_text(json.dumps(rows[1]))
    result = CliRunner().invoke(cli, ["model", "predict", str(tables / "known"), str(file)])
    assert isinstance(result.exception, UserError)
    assert "unknown category 'Atlantis'" in str(result.exception)


def test_duplicate_key_of_row_is_refused(served: Any) -> None:
    row = json.dumps(ROW)
    body = f'{{"instances": [{row}, {row[:-1]}, "city": "Bergen"}}]}}'.encode()
    status, answer, _ = served.request("/v1/models/mean:predict", body)
    assert (status, answer["error"]) == (400, "body: key 'city': given twice in one object")


def test_table_is_predicted_and_evaluated_with_transform_code(served: Any, tables: Path) -> None:
    report = run_smoke_test(f"http://127.0.0.1:{served.port}", CODED, tables / CODED)
    assert report.max_abs_diff <= 1e-6
    bundle = ModelBundle.open(tables / CODED)
    example = bundle.read_example()
    assert example is not None
    assert {name: array.dtype.name for name, array in example.inputs.items()} == {
        "city": "object",
        "age": "int64",
        "income": "float32",
    }
    arguments = ["model", "predict", str(bundle.path), str(tables / "table.csv"), "--allow-model-code"]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    lines = [json.loads(line) for line in result.output.splitlines()]
    rows = [{name: row[name] for name in ("city", "age", "income")} for row in make_rows()]
    np.testing.assert_allclose([line["output"] for line in lines], predict_v1(served, CODED, rows), atol=1e-6)
    samples = read_model_samples(bundle, Dataset.open(tables / f"{CODED}-data"), "test")
    assert samples.inputs["features"].shape[1:] == (6,)


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


def make_frame() -> pd.DataFrame:
    frame = pd.DataFrame(make_rows(70))
    return frame.astype({"city": "category", "garden": "boolean"})


def test_client_predicts_data_frames_and_dicts(served: Any) -> None:
    url, rows = f"http://127.0.0.1:{served.port}", make_rows(70)
    expected = predict_v1(served, "mean", rows)
    columns = {name: np.array([row[name] for row in rows]) for name in FIELDS}
    for inputs in (make_frame(), make_frame()[["garden", "city", "age", "income", "price"]], rows, columns):
        np.testing.assert_allclose(predict_arrays(url, "mean", inputs)["output"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "must have at least one row"),
        ([ROW, {"age": 3}], "row 1: column 'income': missing, got 'age'"),
        (pd.DataFrame([ROW]).drop(columns="city"), "column 'city': missing, got 'age', 'income', 'garden'"),
        (pd.DataFrame([ROW, {**ROW, "age": "old"}]), "row 1: column 'age': must be a number, got the text 'old'"),
        ({"features_numbers": [[1, 2, 3]]}, "inputs: model mean has features_numbers, city, got features_numbers"),
    ],
)
def test_client_refuses_wrong_rows(served: Any, inputs: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        predict_arrays(f"http://127.0.0.1:{served.port}", "mean", inputs)


@pytest.mark.parametrize("name", MODELS)
def test_smoke_test_sends_rows_by_column_names(served: Any, tables: Path, name: str) -> None:
    report = run_smoke_test(f"http://127.0.0.1:{served.port}", name, tables / name, samples=10)
    assert report.max_abs_diff <= 1e-5


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl", "json"])
@pytest.mark.parametrize("name", ["mean", "strict"])
def test_model_predicts_file_that_it_was_trained_on(
    served: Any, tables: Path, tmp_path: Path, name: str, suffix: str
) -> None:
    rows, file = make_rows(), tmp_path / f"table.{suffix}"
    if suffix == "csv":
        write_csv(file, rows)
    elif suffix == "parquet":
        pd.DataFrame(rows).to_parquet(file)
    else:
        file.write_text("\n".join(map(json.dumps, rows)) if suffix == "jsonl" else json.dumps({"instances": rows}))
    result = CliRunner().invoke(cli, ["model", "predict", str(tables / name), str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    printed = [json.loads(line) for line in result.output.splitlines()]
    assert [row["price"] for row in printed] == [row["price"] for row in rows]
    complete = rows if name == "mean" else rows[1:]
    assert (printed[0]["output"] is None) == (name == "strict")
    found = [row["output"] for row in printed if row["output"] is not None]
    np.testing.assert_allclose(found, predict_v1(served, name, complete), atol=1e-6)


def test_predictions_are_written_as_tables(tables: Path, tmp_path: Path) -> None:
    for written, read in ((tmp_path / "found.csv", pd.read_csv), (tmp_path / "found.parquet", pd.read_parquet)):
        arguments = ["model", "predict", str(tables / "strict"), str(tables / "table.csv"), "-o", str(written)]
        assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
        frame = read(written)
        assert list(frame.columns) == [*(f"output_{index}" for index in range(6)), "price"]
        assert frame["output_0"].isna().tolist() == [True] + [False] * 79
    result = CliRunner().invoke(cli, [*arguments[:-1], str(tmp_path / "found.xlsx")])
    assert (result.exit_code, "must end in .csv or .parquet, got '.xlsx'" in str(result.exception)) == (1, True)


def test_dataset_with_other_column_order_is_predicted_by_names(tables: Path) -> None:
    order = ("city", "price", "garden", "income", "age", "id")
    write_csv(tables / "other.csv", [{name: row[name] for name in order} for row in make_rows()])
    other = load_dataset(str(tables / "other.csv"), tables / "other-data", target=["price"], ids=["id"], missing="mean")
    assert other.columns[0].fields == ("garden", "income", "age")
    bundle = ModelBundle.open(tables / "mean")
    same = read_samples(tables / "mean-data", "test")
    found = read_model_samples(bundle, other, "test")
    assert found.target.tolist() == same.target.tolist()
    np.testing.assert_allclose(found.inputs["values"], same.inputs["features"], atol=1e-6)
