from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.mindir.monitoring.log import read_columns, read_log, select_window

REQUEST, RESPONSE = "org.kubeflow.serving.inference.request", "org.kubeflow.serving.inference.response"


def make_event(name: str, data: Any, *, kind: str = REQUEST, second: int = 0, **changes: Any) -> dict[str, Any]:
    attributes = {"specversion": "1.0", "id": name, "type": kind, "source": "host", "component": "predictor"}
    attributes |= {"time": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z", "inferenceservicename": "houses"}
    return {**attributes, "datacontenttype": "application/json", "data": data, **changes}


def make_stored(name: str, data: Any, kind: str = REQUEST) -> dict[str, Any]:
    """Return what KServe 0.20's agent stores: Go's JSON of a LogRequest."""
    return {
        "url": {"Scheme": "s3", "Host": "bucket", "Path": "/log"},
        "bytes": base64.b64encode(json.dumps(data).encode()).decode(),
        "contentType": "application/json",
        "reqType": kind,
        "id": name,
        "inferenceService": "houses",
        "namespace": "default",
        "component": "predictor",
        "occurrenceTime": "2026-01-01T00:00:01.123456789Z",
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def call(*values: Any, name: str = "log.jsonl", end: str = "\n") -> str:
        file = tmp_path / "log" / name
        file.parent.mkdir(exist_ok=True)
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        file.write_text("\n".join(texts) + end)
        return str(file)

    return call


ROWS = {"instances": [{"age": 1, "city": "Oslo"}, {"age": None}]}


@pytest.mark.parametrize(
    ("body", "is_response", "columns"),
    [
        (ROWS, False, {"age": [1, None], "city": ["Oslo", None]}),
        ({"instances": [[1, 2], [3, 4]]}, False, {"": [[1, 2], [3, 4]]}),
        ({"inputs": [[1, 2]]}, False, {"": [[1, 2]]}),
        ({"instances": [{"b64": "AAE="}]}, False, {"": [b"\x00\x01"]}),
        ({"instances": [{"image": {"b64": "AAE="}}]}, False, {"image": [b"\x00\x01"]}),
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]}]},
            False,
            {"x": [[1, 2], [3, 4]]},
        ),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}]}, False, {"x": [[1], [2]]}),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2]]}]}, False, {"x": [[1, 2]]}),
        (
            {
                "inputs": [
                    {"name": "age", "datatype": "INT64", "shape": [2], "data": [1, 2]},
                    {"name": "city", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
                ]
            },
            False,
            {"age": [1, 2], "city": ["a", "b"]},
        ),
        ({"predictions": [1.5, 2.5]}, True, {"": [1.5, 2.5]}),
        ({"predictions": [{"scores": [0, 1], "label": "a"}]}, True, {"scores": [[0, 1]], "label": ["a"]}),
        ({"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0, 1]}]}, True, {"y": [[0, 1]]}),
    ],
)
def test_columns_of_bodies(body: Any, is_response: bool, columns: dict[str, Any]) -> None:
    assert read_columns(body, is_response=is_response) == columns


def test_request_and_response_are_joined_by_id(write: Callable[..., str]) -> None:
    log = read_log(
        write(
            make_event("b", {"predictions": [3]}, kind=RESPONSE, second=5),
            make_event("a", ROWS, second=3),
            make_event("b", {"instances": [[1]]}, second=4),
            make_event("a", {"predictions": [1, 2]}, kind=RESPONSE, second=3),
        )
    )
    first, second = log.exchanges
    assert (first.id, first.rows, first.response) == ("a", 2, {"": [1, 2]})
    assert (second.id, second.request, second.response) == ("b", {"": [[1]]}, {"": [3]})
    assert second.time - first.time == 1
    assert not log.skipped


@pytest.mark.parametrize("document", ["object", "array", "lines", "indented"])
def test_objects_of_kserves_agent(write: Callable[..., str], tmp_path: Path, document: str) -> None:
    stored = [make_stored("a", ROWS), make_stored("a", {"predictions": [1, 2]}, RESPONSE)]
    if document == "object":
        for index, value in enumerate(stored):
            write(value, name=f"{index}.json", end="")
    elif document == "lines":
        write(*stored)
    else:
        write(json.dumps(stored, indent=2 if document == "indented" else None), name="batch.json")
    (exchange,) = read_log(str(tmp_path / "log"), "houses").exchanges
    assert (exchange.request, exchange.response) == (
        {"age": [1, None], "city": ["Oslo", None]},
        {"": [1, 2]},
    )
    assert exchange.time == pytest.approx(1767225601.123456)


def test_bad_lines_are_counted(write: Callable[..., str]) -> None:
    log = read_log(
        write(
            make_event("a", ROWS),
            make_event("other", ROWS, inferenceservicename="digits"),
            make_event("new", ROWS, endpoint="canary"),
            {"specversion": "1.0", "id": "x", "type": "dev.knative.kafka", "source": "s", "data": {}},
            make_event("none", {"messages": []}),
            make_event("text", "no JSON"),
            make_event("base", None, data_base64="%"),
            [1, 2],
            "",
            '{"specversion": "1.0", "id": "half", "ty',
        ),
        "houses",
    )
    assert [one.id for one in log.exchanges] == ["a"]
    assert log.skipped == {
        "events of other services": 1,
        "events of canaries": 1,
        "foreign events": 3,
        "bodies that are neither V1 nor V2": 3,
        "lines that are no JSON": 1,
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((), "has no event of a request or response, found no lines"),
        (({"type": "other", "id": "1"},), "found 1 foreign events"),
        (("half",), "found 1 lines that are no JSON"),
    ],
)
def test_log_without_events_is_refused(write: Callable[..., str], values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_log(write(*values))


def test_missing_log_is_refused() -> None:
    with pytest.raises(NotFoundError, match="nowhere: no such file or folder\nA log is"):
        read_log("nowhere")


@pytest.mark.parametrize(
    ("window", "kept"),
    [("", 120), ("10", 10), ("11", 12), ("1000", 120), ("20s", 40), ("1m", 120), ("30m", 120), ("1d", 120)],
)
def test_window_ends_with_last_event(write: Callable[..., str], window: str, kept: int) -> None:
    events = [make_event(str(second), {"instances": [[1], [2]]}, second=second) for second in range(60)]
    assert sum(one.rows for one in select_window(read_log(write(*events)), window)) == kept


@pytest.mark.parametrize("window", ["0", "x", "5y", "-1", "h", "1.5h"])
def test_invalid_window_is_refused(write: Callable[..., str], window: str) -> None:
    log = read_log(write(make_event("a", ROWS)))
    with pytest.raises(UserError, match=f"window: must be a number of rows, or a duration .*got '{window}'"):
        select_window(log, window)
