"""Splits by time of texts: one format for the whole column, stated or found, or a refusal."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.data.moments import find_format, parse_moments
from kfp_mindspore.data.report import render_report
from kfp_mindspore.errors import UserError, ValidationError

START = date(2023, 11, 25)
DAYS = [START + timedelta(days=7 * index) for index in range(80)]


def to_texts(*texts: str) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return array


@pytest.mark.parametrize(
    "form",
    ["%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%d %B %Y", "%b %d, %Y", "%Y%m%d", "%Y/%m/%d", "%d.%m.%y", "day %j"],
)
def test_format_is_found(form: str) -> None:
    days = DAYS if form != "day %j" else [date(2024, 1, 1) + timedelta(days=index) for index in range(90)]
    values = to_texts(*(day.strftime(form) for day in reversed(days)))
    order = parse_moments(values, find_format(values, "t.csv: day"), "t.csv: day")
    assert (np.diff(order) < 0).all()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("9d", "10d", "-1d"), [9, 10, -1]),
        (("week 9", "week 10"), [9, 10]),
        (("9", "10.5"), [9, 10.5]),
        (("Jan 2024", "Dec 2023"), [1, 0]),
        (("2024-03-01T09:00:00Z", "2024-03-01T09:30:00+01:00"), [1, 0]),
        (("31.12.2023", "01.02.2024"), [0, 1]),
    ],
)
def test_texts_have_order_of_time(texts: tuple[str, ...], expected: list[float]) -> None:
    values = to_texts(*texts)
    order = parse_moments(values, find_format(values, "field"), "field")
    assert np.argsort(order).tolist() == np.argsort(expected).tolist()


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        (("01.02.2024", "03.01.2024"), "have two orders: by %d.%m.%Y and by %m.%d.%Y", "--time-format '%d.%m.%Y' or"),
        (("9d", "2w"), "got '9d' and '2w'", "State the format"),
        (("31.12.2023", "12/30/2023"), "got '31.12.2023' and '12/30/2023'", "State the format"),
        (("yesterday", "today"), "got 'yesterday' and 'today'", "State the format"),
        (("2024-03-01T09:00:00Z", "2024-03-01T09:30:00"), "times with and without a zone", "zone in each row"),
    ],
)
def test_column_without_one_format_is_refused(texts: tuple[str, ...], message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        find_format(to_texts(*texts), "t.csv (CSV): day")
    assert message in caught.value.message
    assert "t.csv (CSV): day" in caught.value.message
    assert hint in caught.value.hint


def write_table(path: Path, form: str) -> Path:
    rows = [f"{day.strftime(form)},{index},{index / 3}" for index, day in enumerate(DAYS)]
    # Not in order.
    rows = rows[::2] + rows[1::2]
    path.write_text("\n".join(["day,size,price", *rows]))
    return path


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%Y", "%Y-%m-%d", "%d%m%Y"])
def test_latest_rows_are_test_split(tmp_path: Path, form: str) -> None:
    table = write_table(tmp_path / "t.csv", form)
    stated = form if form == "%d%m%Y" else ""
    dataset = load_dataset(
        str(table),
        tmp_path / "data",
        target="price",
        split="time:day",
        features=["size"],
        preprocessing="none",
        time_format=stated,
    )
    sizes = [dataset.read_columns(split)["features"].ravel() for split in ("train", "validation", "test")]
    assert max(sizes[0]) < min(sizes[1])
    assert max(sizes[1]) < min(sizes[2])
    shown = dataset.report["moments"]
    first, last = shown["splits"]["train"]
    assert first == DAYS[0].strftime(form)
    assert shown["splits"]["test"][1] == DAYS[-1].strftime(form)
    assert f"day: train {first} to {last}, validation " in render_report(dataset)
    assert json.loads((tmp_path / "data" / "dataset.json").read_text())["report"]["moments"] == shown


def test_stated_format_must_fit_each_row(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t.csv", "%m/%d/%Y")
    with pytest.raises(UserError, match=r"each must have the time_format '%d.%m.%Y', '11/25/2023' does not"):
        load_dataset(str(table), tmp_path / "data", target="price", split="time:day", time_format="%d.%m.%Y")


@pytest.mark.parametrize("split", ["", "random"])
def test_time_format_needs_split_by_time(tmp_path: Path, split: str) -> None:
    table = write_table(tmp_path / "t.csv", "%m/%d/%Y")
    with pytest.raises(ValidationError, match="time_format: "):
        load_dataset(str(table), tmp_path / "data", target="price", split=split, time_format="%d.%m.%Y")


def test_numbers_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(["year,price", *(f"{1900 + index},{index / 3}" for index in range(60))]))
    dataset = load_dataset(
        str(tmp_path / "t.csv"), tmp_path / "data", target="price", split="time:year", features=["year"]
    )
    assert dataset.report["moments"]["splits"]["test"] == ["1948", "1959"]
