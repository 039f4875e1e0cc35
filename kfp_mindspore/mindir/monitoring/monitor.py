"""Drift of a model's requests and predictions from its training data, and its metric by labels that came later."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.data.preprocessing import find_tokenizers
from kfp_mindspore.errors import UserError, ValidationError, join_names
from kfp_mindspore.evaluation import get_metric
from kfp_mindspore.evaluation.comparison import estimate_metric
from kfp_mindspore.evaluation.drift import Distribution, DriftTest, Values, adjust_tests, compare_values
from kfp_mindspore.evaluation.predictions import build_predictions
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.formats.names import normalize_name
from kfp_mindspore.mindir.monitoring.log import Exchange, count_rows, open_location, read_log, select_window
from kfp_mindspore.mindir.monitoring.measures import (
    VALUE,
    measure_column,
    measure_predictions,
    split_columns,
    to_array,
)
from kfp_mindspore.mindir.monitoring.options import DriftOptions
from kfp_mindspore.mindir.monitoring.reference import read_statistics
from kfp_mindspore.options import check_options
from kfp_mindspore.transform.base import fill_objects

PREDICTION = "prediction"
# Fewer labels make an interval that says nothing.
LEAST_LABELS = 20
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class LabelledMetric:
    """A metric by later labels.

    Args:
        name: Metric name.
        value: On the window's rows with a label.
        low: The bootstrap interval's lower bound.
        high: Upper bound.
        samples: Rows with a label.
        reference: On held-out samples at the export; None where it was another metric.
        fallen: Whether the interval lies outside the export's own, on the worse side, by more than the margin.
    """

    name: str
    value: float
    low: float
    high: float
    samples: int
    reference: float | None
    fallen: bool


@dataclass(frozen=True)
class DriftReport:
    """A window compared with the training data.

    Args:
        model: The bundle's path.
        rows: The window's rows.
        start: Its first event's time, in seconds since the epoch.
        end: Its last event's.
        tests: All tests; of predictions with the measure `prediction`.
        significance: See `DriftOptions`.
        distributions: To plot.
        not_watched: Reason by column that was not compared.
        unknown: The requests' columns that training did not have.
        skipped: How many lines and events were skipped, by reason.
        metric: The metric; None without labels.
        notes: What else the reader needs to know.
    """

    model: str
    rows: int
    start: float
    end: float
    tests: tuple[DriftTest, ...]
    significance: float
    distributions: tuple[Distribution, ...]
    not_watched: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    metric: LabelledMetric | None = None
    notes: tuple[str, ...] = ()

    @property
    def drifted(self) -> tuple[str, ...]:
        """Names of the columns and predictions that have drifted."""
        return tuple(dict.fromkeys(test.column for test in self.tests if test.is_drift(self.significance)))

    @property
    def passed(self) -> bool:
        """Whether nothing has drifted, and the metric has not fallen."""
        return not self.drifted and not (self.metric is not None and self.metric.fallen)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types, without distributions."""
        kept = ("model", "rows", "significance", "not_watched", "unknown", "skipped", "notes")
        times = {
            name: value if math.isfinite(value) else None for name, value in (("start", self.start), ("end", self.end))
        }
        return {
            **{name: getattr(self, name) for name in kept},
            **times,
            "passed": self.passed,
            "drifted": self.drifted,
            "metric": None if self.metric is None else vars(self.metric),
            "tests": [{**vars(test), "drift": test.is_drift(self.significance)} for test in self.tests],
        }


def detect_drift(
    bundle_dir: Path | str, log: str, options: DriftOptions | None = None, *, labels: str = "", service: str = ""
) -> DriftReport:
    """Compare a log's window with the statistics of a bundle's training data.

    A column has drifted if a test rejects by Holm's correction for all tests, and the difference is large enough to
    matter: so that a large log does not report differences that change nothing.

    Args:
        bundle_dir: The bundle.
        log: A file, a folder with files, or a URI, see `read_log`.
        options: The options.
        labels: CSV or JSON lines with the columns `id`, an event's ID, and `label`; a request with several rows has as
            many lines, in their order. Empty for none.
        service: Only this InferenceService's events; empty for all.

    Raises:
        NotFoundError: There is no such bundle, log, reference or file of labels.
        UserError: It is a language model's or has no statistics, the reference is no dataset of the model's inputs, or
            the log has no rows or none of the model's columns.
        MissingExtraError: scipy is not installed.
    """
    options = options or DriftOptions()
    check_options(options, subject="drift")
    bundle = ModelBundle.open(bundle_dir, verify=False)
    if bundle.signature.is_language_model:
        raise UserError(
            f"{bundle_dir}: drift is found in V1 and V2 requests, this is a language model",
            hint="Its log has token counts in place of texts.",
        )
    statistics = _compute_reference(bundle, options.reference) if options.reference else read_statistics(bundle)
    found = read_log(log, service)
    window = [one for one in select_window(found, options.window) if one.rows]
    if not window:
        raise UserError(f"{log}: has no rows in the window {options.window or 'of the whole log'}")
    columns, not_watched, unknown = _collect_columns(window, statistics, bundle, log)
    tests, distributions = _compare_columns(bundle, statistics, columns, not_watched, options)
    outputs = _collect_outputs(window, bundle)
    signature = bundle.signature
    measured = measure_predictions(outputs, signature.task, signature.labels)
    for name, summary in statistics.get("predictions", {}).items():
        if name not in measured:
            not_watched[name] = "the log has no responses" if not outputs else "the responses do not have it"
            continue
        if isinstance(measured[name], np.ndarray) != (summary["kind"] == "number") or _has_hashes(measured[name]):
            not_watched[name] = "the log has its hashes, or values of another type"
            continue
        more, distribution = compare_values(name, PREDICTION, summary, measured[name], effect=options.effect)
        tests += more
        distributions.append(distribution)
    notes = []
    rows = sum(one.rows for one in window)
    if rows < 100:
        notes.append(f"{rows} rows are few: only large differences can be found")
    metric = None
    if labels:
        metric, note = _compute_metric(window, bundle, statistics, read_labels(labels), options)
        notes += [note] if note else []
    return DriftReport(
        model=str(bundle_dir),
        rows=rows,
        start=window[0].time,
        end=window[-1].time,
        tests=tuple(adjust_tests(tests)),
        significance=options.significance,
        distributions=tuple(distributions),
        not_watched=not_watched,
        unknown=unknown,
        skipped=found.skipped,
        metric=metric,
        notes=tuple(notes),
    )


def _compute_reference(bundle: ModelBundle, location: str) -> dict[str, Any]:
    """Return the statistics of a dataset's splits and of the model's predictions for them."""
    from kfp_mindspore.mindir.monitoring.statistics import compute_statistics

    with open_location(location, hint="--reference is a directory that dataset load has written.") as path:
        found = compute_statistics(bundle, Dataset.open(path))
    if not found:
        columns = join_names(spec.name for spec in bundle.signature.inputs)
        raise UserError(f"reference: {location}: must have a train split with the model's inputs {columns}")
    return found


def _collect_columns(
    window: Sequence[Exchange], statistics: Mapping[str, Any], bundle: ModelBundle, log: str
) -> tuple[dict[str, list[Any]], dict[str, str], tuple[str, ...]]:
    """Return values by column, the columns that no request has, and the requests' further columns."""
    inputs, stacked, expected = statistics["inputs"], statistics["stacked"], statistics["columns"]
    rows: list[dict[str, list[Any]]] = []
    counts: list[int] = []
    for one in window:
        if one.request is None:
            continue
        only = inputs[0] if len(inputs) == 1 else ""
        named = {normalize_name(name or only): values for name, values in one.request.items()}
        rows.append(split_columns(named, stacked))
        counts.append(count_rows(one.request))
    names = dict.fromkeys(name for found in rows for name in found)
    columns: dict[str, list[Any]] = {name: [] for name in names if name in expected}
    for found, count in zip(rows, counts, strict=True):
        for name, values in columns.items():
            given = found.get(name, ())
            values += [*given, *[None] * (count - len(given))]
    layout = bundle.signature.rows
    ignored = {*statistics["left_out"], *(() if layout is None else (*layout.target, *layout.others))}
    unknown = tuple(name for name in names if name not in expected and name not in ignored)
    if rows and not columns:
        raise UserError(
            f"{log}: has none of the model's columns {join_names(expected)}, found {join_names(names)}",
            hint="Is it another model's log? Name the service, so that only its events are read.",
        )
    reason = "the log has no requests" if not rows else "the log does not have it"
    not_watched = {name: reason for name in expected if name not in columns}
    not_watched |= dict.fromkeys(statistics["left_out"], "the statistics do not have it")
    return columns, not_watched, unknown


def _compare_columns(
    bundle: ModelBundle,
    statistics: Mapping[str, Any],
    columns: Mapping[str, list[Any]],
    not_watched: dict[str, str],
    options: DriftOptions,
) -> tuple[list[DriftTest], list[Distribution]]:
    declaration = bundle.read_preprocessing()
    texts = {name: fill_objects([]) for name in columns if statistics["columns"][name]["kind"] == "text"}
    tokenizers = find_tokenizers(declaration, texts) if texts and declaration.get("pre") else {}
    tests: list[DriftTest] = []
    distributions: list[Distribution] = []
    for name, values in columns.items():
        entry = statistics["columns"][name]
        known = [value for value in values if value is not None]
        if _has_hashes(known):
            not_watched[name] = "the log has its hashes"
            continue
        measures = measure_column(entry["kind"], values, tokenizers.get(name))
        for measure, summary in entry["measures"].items():
            found = measures.get(measure)
            if found is None:
                continue
            missing = None
            if measure == VALUE and isinstance(found, np.ndarray):
                missing = int(np.isnan(found).sum())
                if known and missing == len(found):
                    not_watched[name] = f"its values are no numbers, such as {str(known[0])!r:.40}"
                    continue
                # The server fills missing values in, as the load of the training data did.
                found = np.where(np.isnan(found), entry.get("fill", np.nan), found)
            more, distribution = compare_values(name, measure, summary, found, missing=missing, effect=options.effect)
            tests += more
            distributions.append(distribution)
    return tests, distributions


def _has_hashes(values: Values | Sequence[Any]) -> bool:
    return len(values) > 0 and all(isinstance(value, str) and _HASH.fullmatch(value) for value in values)


def _collect_outputs(window: Sequence[Exchange], bundle: ModelBundle) -> dict[str, Any]:
    """Return values by output, of the responses with all outputs that the first one has."""
    responses = [_name_outputs(one, bundle) for one in window if count_rows(one.response)]
    names = list(responses[0]) if responses else []
    complete = [found for found in responses if set(names) <= set(found)]
    joined = {name: [value for found in complete for value in found[name]] for name in names}
    return {name: to_array(values) for name, values in joined.items() if values}


def _name_outputs(exchange: Exchange, bundle: ModelBundle) -> dict[str, list[Any]]:
    first = bundle.signature.outputs[0].name
    return {name or first: values for name, values in (exchange.response or {}).items()}


def read_labels(location: str) -> dict[str, list[str]]:
    """Return labels by event ID, from a CSV file or JSON lines.

    Raises:
        NotFoundError: There is no such file.
        UserError: It has no columns `id` and `label`; the message names the line.
    """
    labels: dict[str, list[str]] = defaultdict(list)
    with open_location(location) as path, path.open(encoding="utf-8-sig", newline="") as stream:
        try:
            is_json = path.suffix.lower() in (".jsonl", ".ndjson", ".json")
            rows = (json.loads(line) for line in stream if line.strip()) if is_json else csv.DictReader(stream)
            for number, row in enumerate(rows, 1):
                if not isinstance(row, dict) or row.get("id") is None or row.get("label") is None:
                    found = ", ".join(map(str, row)) if isinstance(row, dict) else str(row)
                    raise UserError(f"{location}: row {number}: must have id and label, got {found:.80}")
                labels[str(row["id"])].append(str(row["label"]))
        except (ValueError, csv.Error) as error:
            raise UserError(f"{location}: must be CSV or JSON lines with id and label: {error}") from None
    return dict(labels)


def _compute_metric(
    window: Sequence[Exchange],
    bundle: ModelBundle,
    statistics: Mapping[str, Any],
    labels: Mapping[str, list[str]],
    options: DriftOptions,
) -> tuple[LabelledMetric | None, str]:
    """Return the metric of the rows with a label, or why there is none."""
    task, classes = bundle.signature.task, bundle.signature.labels
    if task not in ("classification", "regression"):
        return None, f"labels: no metric for the task {task or 'none'}: it is for classification and regression"
    metric = get_metric(options.metric, task)
    scores: list[Any] = []
    target: list[float] = []
    unfit = 0
    for one in window:
        given = labels.get(one.id)
        if given is None:
            continue
        outputs = _name_outputs(one, bundle)
        values = outputs.get(statistics.get("output", ""), next(iter(outputs.values()), []))
        if len(values) != len(given):
            unfit += 1
            continue
        scores += values
        target += [_encode_label(label, classes, task) for label in given]
    note = f"labels: {unfit} requests have other row counts than labels or responses" if unfit else ""
    if len(target) < LEAST_LABELS:
        return None, note or f"labels: {len(target)} rows of the window have one, at least {LEAST_LABELS} are needed"
    array = to_array(scores)
    if array.dtype == object:
        return None, "labels: the responses have no scores of equal shape"
    predictions = build_predictions(task, array, np.asarray(target), labels=classes)
    value, low, high = estimate_metric(metric, predictions)
    reference = statistics.get("metric") or {}
    same = reference.get("name") == metric.name
    fallen = False
    if same:
        # Both are samples: their intervals must not touch.
        worse = reference["low"] - high if metric.higher_is_better else low - reference["high"]
        fallen = worse > options.margin
    return LabelledMetric(
        metric.name, value, low, high, len(target), float(reference["value"]) if same else None, fallen
    ), note


def _encode_label(label: str, classes: Sequence[str], task: str) -> float:
    if task == "classification" and label in classes:
        return classes.index(label)
    try:
        number = float(label)
    except ValueError:
        expected = f"one of {join_names(classes)}" if classes else "a number"
        raise ValidationError([f"label: must be {expected}, got {label!r}"], subject="labels") from None
    return number
