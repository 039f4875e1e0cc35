"""Tables whose content is not what their name says, or that are damaged: one message each, with the next step."""

from __future__ import annotations

import gzip
import io
import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.data.report import render_report
from kfp_mindspore.data.rows import read_rows
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.rows import RowInput, RowLayout
from kfp_mindspore.formats.tensors import TensorSpec
from kfp_mindspore.transform import Tokenize

TEXT = "age,city,price\n" + "".join(f"{20 + index},Tromsø,{index / 2}\n" for index in range(20))
LAYOUT = RowLayout(
    (
        RowInput("numbers", "float32", (1,), ("age",), stacked=True),
        RowInput("city", "bytes", (), ("city",)),
    ),
    target=("price",),
)
SPECS = (TensorSpec("numbers", "float32", (-1, 1)), TensorSpec("city", "bytes", (-1,)))


def zip_sheet() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return content.getvalue()


def write_parquet() -> bytes:
    content = io.BytesIO()
    pd.DataFrame({"age": [1.0], "city": ["Oslo"], "price": [1.0]}).to_parquet(content)
    return content.getvalue()


WRONG = {
    "parquet.csv": (write_parquet(), "read as CSV, but its content is a Parquet file", "--format parquet"),
    "sheet.csv": (zip_sheet(), "read as CSV, but its content is a ZIP, Excel or NPZ file", "as CSV"),
    "gzip.csv": (gzip.compress(TEXT.encode()), "read as CSV, but its content is gzip data", "with .gz"),
    "plain.csv.gz": (TEXT.encode(), "read as CSV, compressed by gzip, but its content is plain text", ""),
    "utf16.csv": (TEXT.encode("utf-16"), "read as CSV, but its content is UTF-16 text", "iconv -f UTF-16"),
    "page.csv": (b"<!DOCTYPE html><html>404</html>", "read as CSV, but its content is HTML or XML", ""),
    "list.csv": (b'[{"age": 1}]', "read as CSV, but its content is JSON", "--format jsonl"),
    "text.parquet": (TEXT.encode(), "read as Parquet, but its content is text, such as CSV", ""),
    "latin.csv": (
        TEXT.encode("latin-1"),
        "latin.csv (CSV): line 2, column 'city': must be UTF-8, got 'Tromsø' in another encoding",
        "iconv -f LATIN1",
    ),
    "header.csv": (
        TEXT.replace("city", "størrelse").encode("latin-1"),
        "header.csv (CSV): line 1, the header: must be UTF-8, got 'størrelse'",
        "iconv -f LATIN1",
    ),
    "ambiguous.csv": (b"age;city|price\n1;b|2\n", "found age;city|price", "--delimiter ';'"),
    "short.csv": (b"age,city\n1,Oslo\n", "short.csv (CSV): no field ", ""),
    "ragged.csv": (
        TEXT.encode() + b"1,2,3,4\n",
        "line 22: must have 3 cells as the header has, got 4: '1,2,3,4'",
        "quotes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_table_is_refused_by_load_and_prediction(tmp_path: Path, name: str) -> None:
    content, message, hint = WRONG[name]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        load_dataset(str(file), tmp_path / "data", target="price")
    assert hint in caught.value.hint
    assert not (tmp_path / "data").exists()
    if name == "short.csv":
        file.write_bytes(b"age,price\n1,2\n")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_rows(file, SPECS, LAYOUT)
    assert hint in caught.value.hint


@pytest.mark.parametrize("name", ["other.jsonl", "list.jsonl"])
def test_json_lines_of_other_content_are_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(TEXT if name == "other.jsonl" else '[{"age": 1}]')
    with pytest.raises(UserError, match=r"read as JSON lines, but its content is (text, such as CSV|a JSON list)"):
        load_dataset(str(file), tmp_path / "data", target="price")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,city\n20,Oslo\nold,Oslo\n", "t.csv: row 2: column 'age': must be a number, got 'old'"),
        ("age,city\n20,Oslo\n,Oslo\n", "t.csv: row 2: column 'age': the value is missing, and the dataset's rule"),
        ("age,town\n20,Oslo\n", "t.csv (CSV): no field 'city', found age, town"),
        ("age,city\n", "t.csv (CSV): has no rows"),
    ],
)
def test_wrong_rows_are_refused_by_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(UserError, match=re.escape(message)):
        read_rows(tmp_path / "t.csv", SPECS, LAYOUT)


def test_misspelt_column_is_not_read_by_position(tmp_path: Path) -> None:
    layout = RowLayout((RowInput("numbers", "float32", (2,), ("age", "size"), stacked=True),))
    specs = (TensorSpec("numbers", "float32", (-1, 2)),)
    (tmp_path / "t.csv").write_text("size,agge\n1,2\n")
    with pytest.raises(UserError, match="age"):
        read_rows(tmp_path / "t.csv", specs, layout)
    (tmp_path / "t.csv").write_text("0,1\n1,2\n")
    assert read_rows(tmp_path / "t.csv", specs, layout).inputs["numbers"].tolist() == [[1, 2]]


def test_texts_that_look_like_numbers_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("price,city,age\n1.1,0150,20\n,0151,true\n".replace("true", "21"))
    rows = read_rows(tmp_path / "t.csv", SPECS, LAYOUT)
    assert rows.inputs["city"].tolist() == [b"0150", b"0151"]
    assert rows.inputs["numbers"].tolist() == [[20], [21]]
    assert rows.target == {"price": [1.1, None]}


@pytest.mark.parametrize(
    ("count", "hint"), [(60, ""), (200, "The values of age are numbers but for 'old' in row 4. Leave")]
)
def test_text_among_numbers_is_named(tmp_path: Path, count: int, hint: str) -> None:
    lines = [f"{'old' if index == 3 else index},{index / 2}" for index in range(count)]
    (tmp_path / "t.csv").write_text("\n".join(["age,price", *lines]))
    if hint:
        with pytest.raises(UserError, match=r"has 1[0-9]{2} different texts") as caught:
            load_dataset(str(tmp_path / "t.csv"), tmp_path / "data", target="price")
        assert caught.value.hint.startswith(hint)
        return
    dataset = load_dataset(str(tmp_path / "t.csv"), tmp_path / "data", target="price")
    assert "warning: age is read as texts: its values are numbers but for 'old' in row 4" in render_report(dataset)


def write_reviews(path: Path) -> None:
    """Write 150 different texts with two labels; each has one word in five that no other text has."""
    lines = [f"Review {index}: it's a {'good' if index % 2 else 'bad'} film!,{index % 2}" for index in range(150)]
    path.write_text("\n".join(["text,label", *lines]))


def test_text_of_one_entry_a_row_is_no_category(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.csv")
    with pytest.raises(UserError, match=r"'text' has another text in each of \d+ rows, which is no category") as caught:
        load_dataset(str(tmp_path / "reviews.csv"), tmp_path / "data", target="label")
    assert 'Tokenize(40, unit="words", lowercase=True, column="text")' in caught.value.hint


@pytest.mark.parametrize(
    ("max_values", "expected"),
    [(0, "warning: unknown tokens in text: 16.7% of"), (1, "warning: unknown tokens in text")],
)
def test_unknown_words_are_reported(tmp_path: Path, max_values: int, expected: str) -> None:
    write_reviews(tmp_path / "reviews.csv")
    step = Tokenize(8, "words", lowercase=True, max_values=max_values, column="text")
    dataset = load_dataset(
        str(tmp_path / "reviews.csv"), tmp_path / "data", target="label", task="classification", preprocessing=[step]
    )
    assert set(dataset.report["unknown_tokens"]["text"]) == set(dataset.splits) - {"train"}
    assert expected in render_report(dataset)


def test_codes_of_digits_and_letters_are_no_mistakes(tmp_path: Path) -> None:
    lines = [f"{index % 20}{'A' if index % 3 else ''},{index / 2}" for index in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["code,price", *lines]))
    assert "mixed" not in load_dataset(str(tmp_path / "t.csv"), tmp_path / "data", target="price").report


ROWS = 60
SALES: dict[str, list[Any]] = {
    "age": [float(index) for index in range(ROWS)],
    "city": ["Oslo", "Rome", "Lima"] * 20,
    "price": [index / 2 + 0.25 for index in range(ROWS)],
}
TEXTS = [str(price) for price in SALES["price"]]
SEVERAL = "a classification needs several samples of each class, got 60 classes in 60 samples"


@pytest.mark.parametrize(
    ("options", "values", "message", "hint"),
    [
        # A class for everybody, or nobody's class.
        ({"target": "y"}, ["a"] * ROWS, "target y: a classification needs at least 2 classes, each of the 60", "Name"),
        ({"target": "y"}, [1] * ROWS, "needs at least 2 classes, each of the 60 samples has '1'", "Name another"),
        (
            {"target": "y"},
            ["a", "b", None] * 20,
            "missing values in y (20, first in row 3), in 60 samples",
            "--missing drop",
        ),
        (
            {"target": "y", "missing": "mean"},
            ["a", "b", None] * 20,
            "missing values in y (20, first in row 3)",
            "--missing drop",
        ),
        ({"target": "y"}, ["a", "b"] * 29 + ["a", "c"], "several samples of each class, 'c' has one", "split random"),
        # The other template's target.
        (
            {"target": "price", "task": "classification"},
            None,
            "target price: a classification needs integers or texts, got 0.25 in row 1",
            "--template regression",
        ),
        ({"target": "y", "task": "classification"}, range(ROWS), f"{SEVERAL}, integers", "--template regression"),
        ({"target": "y"}, [f"n{index}" for index in range(ROWS)], f"{SEVERAL}, texts, such as 'n0' in row 1", "Name"),
        (
            {"target": "city", "task": "regression"},
            None,
            "target city: regression needs numbers, got texts, such as 'Oslo' in row 1",
            "--template classification",
        ),
        # Numbers as texts.
        (
            {"target": "y", "task": "regression"},
            ["1.5", "2.5", "?", *TEXTS[3:]],
            "target y: regression needs numbers, got numbers but for '?' in row 3",
            "Correct the rows",
        ),
        ({"target": "y"}, ["1.5", "2.5", "?", *TEXTS[3:]], f"{SEVERAL}, numbers but for '?' in row 3", "Correct the"),
        (
            {"target": "y", "task": "regression"},
            [text.replace(".", ",") for text in TEXTS],
            "target y: regression needs numbers, got numbers as texts, such as '0,25' in row 1",
            "a decimal point",
        ),
        (
            {"target": "y", "task": "regression"},
            [math.inf, *range(59)],
            "must hold finite numbers, got inf in row 1",
            "",
        ),
        # Other names.
        ({"target": "prise"}, None, "no field 'prise', found age, city, price; did you mean 'price'?", ""),
        ({"target": "price", "features": ["agee"]}, None, "no field 'agee', found age, city, price; did you", ""),
        (
            {"task": "regression"},
            None,
            "regression needs a target, no field is named target or label or labels or class: found age, city, price",
            "--target NAME",
        ),
    ],
)
def test_wrong_target_is_refused_before_training(
    tmp_path: Path, options: dict[str, Any], values: Sequence[Any] | None, message: str, hint: str
) -> None:
    table = pd.DataFrame(SALES if values is None else {**SALES, "y": values})
    table.to_csv(tmp_path / "sales.csv", index=False)
    with pytest.raises(UserError, match=r"sales\.csv \(CSV\): ") as caught:
        load_dataset(str(tmp_path / "sales.csv"), tmp_path / "data", **options)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert not (tmp_path / "data").exists()


def test_dropped_empty_text_is_no_class(tmp_path: Path) -> None:
    pd.DataFrame({**SALES, "y": ["a", "b", None] * 20}).to_csv(tmp_path / "t.csv", index=False)
    dataset = load_dataset(str(tmp_path / "t.csv"), tmp_path / "data", target="y", missing="drop")
    assert (dataset.labels, sum(dataset.splits.values())) == (("a", "b"), 40)


def test_numbers_as_texts_are_named(tmp_path: Path) -> None:
    table = pd.DataFrame({**SALES, "height": TEXTS})
    table.to_parquet(tmp_path / "t.parquet")
    dataset = load_dataset(str(tmp_path / "t.parquet"), tmp_path / "data", target="price")
    expected = "warning: height is read as texts: its values are numbers as texts, such as '0.25' in row 1"
    assert expected in render_report(dataset)
    with pytest.raises(UserError, match=r"t\.parquet .*target height: .* numbers as texts, such as '0\.25' in row 1"):
        load_dataset(str(tmp_path / "t.parquet"), tmp_path / "data", target="height", task="regression")
