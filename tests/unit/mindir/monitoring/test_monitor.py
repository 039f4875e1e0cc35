from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data.samples import read_samples
from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.lm.bundle.causal import import_model
from kfp_mindspore.mindir.monitoring.monitor import DriftReport, detect_drift
from kfp_mindspore.mindir.monitoring.options import DriftOptions
from tests.support.language.tiny_language_model import write_source
from tests.support.models.table_models import CITIES

pytestmark = pytest.mark.mindspore
TYPE = "org.kubeflow.serving.inference."


def make_table(count: int = 600, *, shift: float = 0.0, cities: tuple[str, ...] = CITIES) -> list[dict[str, Any]]:
    generator = random.Random(7)
    return [
        {
            "age": generator.randint(18, 80),
            "income": round(generator.gauss(3 + shift, 1), 3),
            "garden": generator.random() < 0.5,
            "city": generator.choice(cities),
        }
        for _ in range(count)
    ]


Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a log with an exchange for each two rows."""

    def call(rows: list[Any], outputs: list[Any] | None = None, end: str = "") -> str:
        file = tmp_path / "log.jsonl"
        with file.open("w") as stream:
            for index in range(0, len(rows), 2):
                common = {"specversion": "1.0", "id": f"r{index}", "source": "x", "inferenceservicename": "houses"}
                common["time"] = f"2026-01-01T{index // 3600:02}:{index // 60 % 60:02}:{index % 60:02}Z"
                bodies: dict[str, Any] = {"request": {"instances": rows[index : index + 2]}}
                if outputs is not None:
                    bodies["response"] = {"predictions": outputs[index : index + 2]}
                for kind, body in bodies.items():
                    stream.write(json.dumps({**common, "type": TYPE + kind, "data": body}) + "\n")
            stream.write(end)
        return str(file)

    return call


@pytest.mark.parametrize(
    ("changes", "drifted"),
    [
        ({}, ()),
        ({"shift": 0.5}, ("income",)),
        ({"cities": (*CITIES, "Paris")}, ("city",)),
        ({"cities": CITIES[:2], "shift": -0.6}, ("income", "city")),
    ],
)
def test_drifted_columns_are_found(
    tables: Path, write: Write, changes: dict[str, Any], drifted: tuple[str, ...]
) -> None:
    report = detect_drift(tables / "declared", write(make_table(**changes)))
    assert report.drifted == drifted
    assert report.passed is not bool(drifted)
    assert (report.rows, report.unknown, report.skipped) == (600, (), {})
    assert set(report.not_watched.values()) == {"the log has no responses"}
    value = json.loads(json.dumps(report.to_dict()))
    assert (value["rows"], tuple(value["drifted"])) == (600, drifted)


def change(rows: list[dict[str, Any]], name: str, function: Callable[[Any], Any]) -> list[dict[str, Any]]:
    return [{**row, name: function(row[name])} for row in rows]


def _check_missing(report: DriftReport) -> None:
    (test,) = [test for test in report.tests if test.column == "income" and test.test == "missing"]
    assert test.statistic == pytest.approx(0.2, abs=0.05)
    assert test.is_drift(0.05)


def _check_unknown(report: DriftReport) -> None:
    assert report.unknown == ("pets",)
    assert report.passed


HASH = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
DRAW = random.Random(3)


@pytest.mark.parametrize(
    ("rows", "check"),
    [
        (change(make_table(), "income", lambda value: None if DRAW.random() < 0.2 else value), _check_missing),
        ([{**row, "pets": 1} for row in make_table()], _check_unknown),
        ([{**row, "id": 1, "price": 3.5} for row in make_table()], lambda report: _check_ignored(report)),
        (change(make_table(), "age", lambda _: HASH), lambda report: _check_not_watched(report, "age", "hashes")),
        (change(make_table(), "city", lambda _: HASH), lambda report: _check_not_watched(report, "city", "hashes")),
        (
            change(make_table(), "age", str),
            lambda report: _check_not_watched(report, "age", "are no numbers, such as '"),
        ),
        (
            [{name: value for name, value in row.items() if name != "age"} for row in make_table()],
            lambda report: _check_not_watched(report, "age", "the log does not have it"),
        ),
    ],
)
def test_columns_that_differ_from_trainings(
    tables: Path, write: Write, rows: list[dict[str, Any]], check: Callable[[DriftReport], None]
) -> None:
    check(detect_drift(tables / "declared", write(rows)))


def _check_ignored(report: DriftReport) -> None:
    assert report.unknown == ()


def _check_not_watched(report: DriftReport, name: str, reason: str) -> None:
    assert reason in report.not_watched[name]
    assert name not in {test.column for test in report.tests if test.measure == "value"}
    assert report.passed


def test_packed_inputs_are_those_of_columns(tables: Path, write: Write) -> None:
    rows = make_table(shift=0.5)
    by_name = detect_drift(tables / "plain", write([{name: row[name] for name in ("age", "income")} for row in rows]))
    packed = detect_drift(tables / "plain", write([[row["age"], row["income"]] for row in rows]))
    assert by_name.tests == packed.tests
    assert packed.drifted == ("income",)


def test_predictions_that_drift(tables: Path, write: Write) -> None:
    rows = [{name: row[name] for name in ("age", "income")} for row in make_table()]
    outputs = [[row["age"], row["income"]] for row in rows]
    assert detect_drift(tables / "plain", write(rows, outputs)).passed
    shifted = detect_drift(tables / "plain", write(rows, [[age, income + 1] for age, income in outputs]))
    assert shifted.drifted == ("output[1]",)
    assert not shifted.not_watched


def test_hashed_predictions_are_not_watched(
    lifecycle: Any, write: Write, digits: tuple[list[Any], list[Any], list[str]]
) -> None:
    images, outputs, _ = digits
    score = next(name for name, value in outputs[0].items() if isinstance(value, list))
    report = detect_drift(lifecycle.bundle, write(images, [{"label": HASH, score: HASH} for _ in outputs]))
    assert report.not_watched == {
        **dict.fromkeys(("prediction", "confidence"), "the responses do not have it"),
        "label": "the log has its hashes, or values of another type",
    }


def test_reference_replaces_missing_statistics(tables: Path, write: Write) -> None:
    log = write([{name: row[name] for name in ("age", "income")} for row in make_table(shift=0.5)])
    report = detect_drift(tables / "bare", log, DriftOptions(reference=str(tables / "bare-data")))
    assert report.drifted == ("income",)
    assert report.tests == detect_drift(tables / "plain", log).tests


def test_unfit_references_are_refused(tables: Path, lifecycle: Any, write: Write) -> None:
    log = write(make_table(20))
    with pytest.raises(NotFoundError, match="nowhere: no such file or folder"):
        detect_drift(tables / "bare", log, DriftOptions(reference="nowhere"))
    with pytest.raises(NotFoundError, match=r"dataset.json is missing, so this is no dataset directory"):
        detect_drift(tables / "bare", log, DriftOptions(reference=str(tables / "bare")))
    with pytest.raises(UserError, match="column 'age': missing, got 'image'"):
        detect_drift(tables / "bare", log, DriftOptions(reference=str(lifecycle.dataset)))
    with pytest.raises(UserError, match=r"reference: .*: must have a train split with the model's inputs"):
        detect_drift(lifecycle.bundle, log, DriftOptions(reference=str(tables / "bare-data")))


def test_language_models_are_refused(write: Write, tmp_path: Path) -> None:
    import_model(write_source(tmp_path / "source"), tmp_path / "bundle")
    for options in (DriftOptions(), DriftOptions(reference=str(tmp_path))):
        with pytest.raises(UserError, match=r"drift is found in V1 and V2 requests, this is a language model\n.*token"):
            detect_drift(tmp_path / "bundle", write(make_table(20)), options)


@pytest.mark.parametrize(
    ("model", "log", "options", "error", "message"),
    [
        ("bare", None, {}, UserError, "bare: has no statistics of its training data"),
        ("nowhere", None, {}, NotFoundError, "nowhere: no such model directory"),
        ("plain", "nowhere", {}, NotFoundError, "nowhere: no such file or folder"),
        ("plain", [{"x": 1, "y": 2}], {}, UserError, "has none of the model's columns age, income, found x, y\n"),
        ("plain", [], {}, UserError, "has no event of a request or response, found no lines"),
        ("plain", None, {"window": "0d"}, UserError, "window: must be a number of rows, or a duration"),
        ("plain", None, {"significance": 1.5}, UserError, "significance: must be"),
        ("plain", None, {"effect": -1.0}, UserError, "effect: must be"),
    ],
)
def test_wrong_inputs_are_refused(
    tables: Path, write: Write, model: str, log: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    location = log if isinstance(log, str) else write(make_table(20) if log is None else log)
    with pytest.raises(error, match=message):
        detect_drift(tables / model, location, DriftOptions(**options))


def test_events_without_rows_are_refused(tables: Path, tmp_path: Path) -> None:
    event = {"specversion": "1.0", "id": "a", "source": "x", "type": f"{TYPE}request", "data": {"instances": []}}
    (tmp_path / "log.jsonl").write_text(json.dumps(event) + "\n")
    with pytest.raises(UserError, match=r"log.jsonl: has no rows in the window of the whole log"):
        detect_drift(tables / "plain", str(tmp_path / "log.jsonl"))


def test_half_a_line_and_window_are_reported(tables: Path, write: Write) -> None:
    report = detect_drift(
        tables / "declared", write(make_table(), end='{"specversion": "1.0", "id"'), DriftOptions(window="40")
    )
    assert (report.rows, report.skipped) == (40, {"lines that are no JSON": 1})
    assert report.end - report.start == 38
    assert report.notes == ("40 rows are few: only large differences can be found",)


@pytest.fixture(scope="module")
def digits(lifecycle: Any) -> tuple[list[Any], list[Any], list[str]]:
    """Held-out images, the model's scores and the labels."""
    from kfp_mindspore.mindir import ModelRunner

    samples = read_samples(lifecycle.dataset, "test", preprocessing={})
    with ModelRunner(lifecycle.bundle) as runner:
        (name,) = [spec.name for spec in runner.inputs]
        outputs = runner.predict({name: next(iter(samples.raw.values()))})
    texts = {
        name: [one.decode() if isinstance(one, bytes) else one for one in array.tolist()]
        for name, array in outputs.items()
    }
    rows = [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]
    assert samples.target is not None
    return next(iter(samples.raw.values())).tolist(), rows, [str(label) for label in samples.target]


def write_labels(file: Path, labels: Mapping[str, list[str]], kind: str = "csv") -> str:
    rows = [{"id": name, "label": label} for name, found in labels.items() for label in found]
    with file.with_suffix(f".{kind}").open("w", newline="") as stream:
        if kind == "jsonl":
            stream.writelines(json.dumps(row) + "\n" for row in rows)
        else:
            writer = csv.DictWriter(stream, ["id", "label"])
            writer.writeheader()
            writer.writerows(rows)
    return str(file.with_suffix(f".{kind}"))


@pytest.mark.parametrize(("wrong", "fallen"), [(0, False), (150, True)])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_metric_of_later_labels(
    lifecycle: Any, write: Write, tmp_path: Path, digits: tuple[Any, Any, Any], wrong: int, fallen: bool, kind: str
) -> None:
    images, outputs, truth = digits
    changed = [str((int(label) + 1) % 10) if index < wrong else label for index, label in enumerate(truth)]
    labels = write_labels(
        tmp_path / "labels", {f"r{index}": changed[index : index + 2] for index in range(0, len(changed), 2)}, kind
    )
    report = detect_drift(lifecycle.bundle, write(images, outputs), labels=labels)
    assert report.metric is not None
    assert report.drifted == ()
    assert (report.metric.name, report.metric.samples, report.metric.fallen) == ("accuracy", 360, fallen)
    assert report.passed is not fallen
    if not wrong:
        assert report.metric.value == pytest.approx(report.metric.reference)
    assert report.metric.low <= report.metric.value <= report.metric.high


def test_darker_images_are_drift(lifecycle: Any, write: Write, digits: tuple[Any, Any, Any]) -> None:
    images = (np.asarray(digits[0]) * 0.5).tolist()
    assert detect_drift(lifecycle.bundle, write(images)).drifted == (next(iter(_list_inputs(lifecycle))),)


def _list_inputs(lifecycle: Any) -> list[str]:
    return list(json.loads((lifecycle.bundle / "statistics.json").read_text())["columns"])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({f"r{index}": ["3"] for index in range(0, 360, 2)}, "180 requests have other row counts"),
        ({"r0": ["1", "2"]}, "2 rows of the window have one, at least 20 are needed"),
        ({"other": ["1"]}, "0 rows of the window have one"),
    ],
)
def test_labels_that_do_not_fit_are_reported(
    lifecycle: Any,
    write: Write,
    tmp_path: Path,
    digits: tuple[Any, Any, Any],
    labels: dict[str, list[str]],
    message: str,
) -> None:
    images, outputs, _ = digits
    report = detect_drift(lifecycle.bundle, write(images, outputs), labels=write_labels(tmp_path / "labels", labels))
    assert report.metric is None
    assert message in report.notes[0]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("id,label\nr0,cat\nr0,cat\n", ValidationError, "label: must be one of 0, 1, .*got 'cat'"),
        ("id,truth\nr0,1\n", UserError, "row 1: must have id and label, got id, truth"),
        ("r0\n", None, "0 rows of the window"),
    ],
)
def test_wrong_labels_are_refused(
    lifecycle: Any,
    write: Write,
    tmp_path: Path,
    digits: tuple[Any, Any, Any],
    content: str,
    error: type[Exception] | None,
    message: str,
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(content)
    log = write(digits[0], digits[1])
    if error is None:
        assert message in detect_drift(lifecycle.bundle, log, labels=str(file)).notes[0]
        return
    with pytest.raises(error, match=message):
        detect_drift(lifecycle.bundle, log, labels=str(file))
    with pytest.raises(NotFoundError, match=r"none.csv: no such file"):
        detect_drift(lifecycle.bundle, log, labels="none.csv")
