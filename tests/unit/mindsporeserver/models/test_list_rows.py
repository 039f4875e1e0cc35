"""Rows with lists of unequal lengths, by every protocol of a real server, its client, files and the smoke test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

from kfp_mindspore.cli.main import cli
from kfp_mindspore.data import load_dataset
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference import run_smoke_test
from kfp_mindspore.inference.predict import predict as predict_arrays
from kfp_mindspore.steps.deployment.predict import predict_batch
from kfp_mindspore.transform import Pad

pytestmark = pytest.mark.mindspore

LENGTH = 6
ROWS = [
    {"visit": index, "tokens": [1 + (index + place) % 9 for place in range(index % 7)], "age": 20 + index}
    for index in range(70)
]


def expect(tokens: list[int], age: int) -> list[float]:
    """Return a row's output: its last LENGTH tokens, padded at the left, beside the mask, the count and the age."""
    kept = tokens[-LENGTH:]
    empty = LENGTH - len(kept)
    return [*[0] * empty, *kept, *[0] * empty, *[1] * len(kept), len(kept), age]


@pytest.fixture(scope="module", autouse=True)
def _networks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "support" / "models"))
        yield


@pytest.fixture(scope="module")
def root(_networks: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import mindspore
    import small_networks

    from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
    from kfp_mindspore.mindir import export_mindir

    root = tmp_path_factory.mktemp("lists")
    (root / "visits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, features, options in (
        ("visits", ["tokens", "age"], {"mask": "mask", "lengths": "count"}),
        ("alone", ["tokens"], {"mask": "mask", "lengths": "count", "truncate": True}),
    ):
        dataset = load_dataset(
            str(root / "visits.jsonl"),
            root / f"{name}-data",
            ids=["visit"],
            features=features,
            preprocessing=[Pad(LENGTH, side="left", column="tokens", **options)],
        )
        spec = NetworkSpec(f"small_networks:{'Visit' if len(features) > 1 else 'Tokens'}")
        network = small_networks.Visit() if len(features) > 1 else small_networks.Tokens()
        with write_checkpoint(
            root / f"{name}-checkpoint", epoch=1, step=1, seed=1, network=spec, preprocessing=dataset.preprocessing
        ) as directory:
            mindspore.save_checkpoint(network, str(directory / "network.ckpt"))
        export_mindir(root / f"{name}-checkpoint", root / name, dataset_dir=dataset.path)
    return root


@pytest.fixture(scope="module")
def served(root: Path, start_server: Callable[..., Any]) -> Any:
    server = start_server(root / "visits", "visits", f"--model_dir=alone={root / 'alone'}")
    server.wait("/v2/health/ready", 120)
    return server


def predict_v1(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    status, found, _ = server.request(f"/v1/models/{name}:predict", {"instances": rows})
    assert status == 200, found
    return found["predictions"]


def describe_texts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    texts = [json.dumps(row["tokens"]) for row in rows]
    tensors = [{"name": "tokens", "datatype": "BYTES", "shape": [len(rows)], "data": texts}]
    if "age" in rows[0]:
        ages = [row["age"] for row in rows]
        tensors.append({"name": "age", "datatype": "INT64", "shape": [len(rows)], "data": ages})
    return tensors


def predict_v2(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    status, found, _ = server.request(f"/v2/models/{name}/infer", {"inputs": describe_texts(rows)})
    assert status == 200, found
    output = found["outputs"][0]
    return np.array(output["data"]).reshape(output["shape"]).tolist()


def predict_tensors(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    """Send each row as a tensor of its own length; empty lists have no tensor and are sent as text."""
    outputs = []
    for row in rows:
        tensors = describe_texts([row])
        if row["tokens"]:
            tensors[0] |= {"datatype": "INT64", "shape": [1, len(row["tokens"])], "data": row["tokens"]}
        status, found, _ = server.request(f"/v2/models/{name}/infer", {"inputs": tensors})
        assert status == 200, found
        outputs.append(found["outputs"][0]["data"])
    return outputs


def predict_grpc(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    inputs = []
    for tensor in describe_texts(rows):
        kind = "bytes_contents" if tensor["datatype"] == "BYTES" else "int64_contents"
        data = [value.encode() if isinstance(value, str) else value for value in tensor["data"]]
        contents = pb.InferTensorContents(**{kind: data})
        names = {key: tensor[key] for key in ("name", "datatype", "shape")}
        inputs.append(pb.ModelInferRequest.InferInputTensor(**names, contents=contents))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        answer = GRPCInferenceServiceStub(channel).ModelInfer(
            pb.ModelInferRequest(model_name=name, inputs=inputs), timeout=30
        )
    output = answer.outputs[0]
    return np.array(output.contents.fp32_contents).reshape(list(output.shape)).tolist()


def predict_client(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    return predict_arrays(f"http://127.0.0.1:{server.port}", name, rows)["output"].tolist()


def predict_frame(server: Any, name: str, rows: list[dict[str, Any]]) -> Any:
    return predict_arrays(f"http://127.0.0.1:{server.port}", name, pd.DataFrame(rows))["output"].tolist()


@pytest.mark.parametrize(
    "predict", [predict_v1, predict_v2, predict_tensors, predict_grpc, predict_client, predict_frame]
)
def test_lists_are_padded_as_in_training(served: Any, predict: Any) -> None:
    rows = [{"tokens": row["tokens"], "age": row["age"]} for row in ROWS[:9]]
    assert predict(served, "visits", rows) == [expect(row["tokens"], row["age"]) for row in rows]


def test_rows_of_one_list_column_may_be_lists(served: Any) -> None:
    lists = [[1, 2, 3], [], list(range(1, 9))]
    expected = [expect(tokens, 0)[:-1] for tokens in lists]
    assert predict_v1(served, "alone", lists) == expected
    assert predict_client(served, "alone", [{"tokens": tokens} for tokens in lists]) == expected


def test_metadata_describe_lists(served: Any, root: Path) -> None:
    _, found, _ = served.request("/v2/models/visits")
    shapes = {spec["name"]: (spec["datatype"], spec["shape"]) for spec in found["inputs"]}
    assert shapes == {"features": ("FP32", [-1, 1]), "tokens": ("INT32", [-1, -1])}
    assert [one.get("longest") for one in found["rows"]["inputs"]] == [None, LENGTH]
    printed = CliRunner().invoke(cli, ["model", "inspect", str(root / "visits")], catch_exceptions=False).output
    assert re.search(r"tokens +int32 list +tokens", printed)
    assert "features of mask: 1 (mask of tokens)" in printed


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (list(range(8)), "column 'tokens': has 8 values, expected at most 6"),
        ([1, "b"], "column 'tokens': must be a list of integers, holds the text 'b'"),
        ([1, 2.5], "column 'tokens': must be a list of integers, holds 2.5"),
        ([[1], [2]], "column 'tokens': must be a list of integers, holds a list [1]"),
        ([1 << 40], "column 'tokens': must be a list of integers (int32)"),
        ("1 2", "column 'tokens': must be a list of integers, got the text '1 2'"),
        (7, "column 'tokens': must be a list of integers, got 7"),
        (None, "column 'tokens': the value is missing"),
    ],
)
def test_wrong_list_is_refused_with_row_and_column(served: Any, tokens: Any, message: str) -> None:
    rows = [{"tokens": [1], "age": 1}, {"tokens": tokens, "age": 2}]
    status, found, _ = served.request("/v1/models/visits:predict", {"instances": rows})
    assert (status, found["error"].startswith(f"instances[1]: {message}")) == (400, True), found
    texts = [text if isinstance(text, str) else json.dumps(text) for text in ([1], tokens)]
    tensors = [{**describe_texts(rows)[0], "data": texts}, describe_texts(rows)[1]]
    status, found, _ = served.request("/v2/models/visits/infer", {"inputs": tensors})
    assert (status, found["error"].startswith("row 1: column 'tokens': ")) == (400, True), found


@pytest.mark.parametrize("name", ["visits", "alone"])
def test_smoke_test_sends_lists(served: Any, root: Path, name: str) -> None:
    url = f"http://127.0.0.1:{served.port}"
    assert run_smoke_test(url, name, root / name, samples=10).max_abs_diff <= 1e-6


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_model_predicts_files_with_lists(root: Path, tmp_path: Path, suffix: str) -> None:
    file, frame = tmp_path / f"rows{suffix}", pd.DataFrame(ROWS)
    if suffix == ".jsonl":
        frame.to_json(file, orient="records", lines=True)
    elif suffix == ".json":
        file.write_text(json.dumps(ROWS))
    else:
        frame.to_parquet(file) if suffix == ".parquet" else frame.to_csv(file, index=False)
    result = CliRunner().invoke(cli, ["model", "predict", str(root / "visits"), str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = [json.loads(line)["output"] for line in result.output.splitlines()]
    assert found == [expect(row["tokens"], row["age"]) for row in ROWS]


def test_batch_prediction_has_padded_lists(root: Path, tmp_path: Path) -> None:
    artifacts = [SimpleNamespace(path=str(path), metadata={}) for path in (root / "visits", root / "visits-data")]
    written = SimpleNamespace(path=str(tmp_path / "found.jsonl"), metadata={})
    count = predict_batch(*artifacts, written)
    outputs = [json.loads(line)["outputs"]["output"] for line in Path(written.path).read_text().splitlines()]
    raw = ModelBundle.open(root / "visits").read_verified().raw
    assert count == len(outputs) == 14
    assert outputs[0] == expect(raw["tokens"][0].tolist(), int(raw["features"][0, 0]))
