"""Columns with lists of unequal lengths, from file to network input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.data.report import render_report
from kfp_mindspore.data.samples import read_samples
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.rows import build_layout
from kfp_mindspore.training.samples.columns import resolve_columns
from kfp_mindspore.transform import Pad, Standardize, build_pipeline
from kfp_mindspore.transform.rows import RowPacker

SIZES = [3, 0, *(1 + index % 8 for index in range(58))]
ROWS = [
    {
        "tokens": list(range(1, size + 1)),
        "steps": [[index / 7, float(place)] for place in range(size)],
        "age": index,
        "label": "ab"[index % 2],
    }
    for index, size in enumerate(SIZES)
]
STEPS = [
    Pad(8, column="tokens", mask="mask"),
    Standardize(column="steps"),
    Pad(8, column="steps", lengths="count", side="left"),
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    import pyarrow
    from pyarrow import parquet

    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        lines = [",".join(rows[0])]
        lines += [",".join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv"])
@pytest.mark.parametrize("storage", ["npz", "mindrecord"])
def test_lists_of_any_table_become_equal_inputs(tmp_path: Path, suffix: str, storage: str) -> None:
    source = write_rows(tmp_path / f"rows{suffix}", ROWS)
    dataset = load_dataset(source, tmp_path / "out", target="label", preprocessing=STEPS, storage=storage)
    assert {column.name: (column.dtype, column.shape) for column in dataset.list_columns("feature")} == {
        "features": ("float32", (1,)),
        "tokens": ("int32", (-1,)),
        "steps": ("float32", (-1, 2)),
    }
    samples = read_samples(dataset, "train")
    lengths = [len(row) for row in samples.raw["tokens"]]
    assert {name: array.shape[1:] for name, array in samples.inputs.items()} == {
        "features": (1,),
        "tokens": (8,),
        "mask": (8,),
        "steps": (8, 2),
        "count": (),
    }
    assert samples.inputs["count"].tolist() == lengths == samples.inputs["mask"].sum(axis=1).tolist()
    assert all(np.array_equal(row, np.arange(1, len(row) + 1)) for row in samples.raw["tokens"])
    assert "lists in tokens: 0 to 8 values" in render_report(dataset)


def test_truncated_lists_are_reported(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [{"tokens": row["tokens"], "label": row["label"]} for row in ROWS])
    dataset = load_dataset(source, tmp_path / "out", target="label", preprocessing=[Pad(4, truncate=True)])
    assert dataset.report["lists"]["tokens"]["cut"] == pytest.approx(0.5, abs=0.2)
    assert "are cut" in render_report(dataset)


def test_splits_may_have_lists_of_different_lengths(tmp_path: Path) -> None:
    equal = [{"tokens": [1, 2], "label": "ab"[index % 2]} for index in range(10)]
    train, test = (write_rows(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", ROWS), ("b", equal)))
    dataset = load_dataset(
        train, tmp_path / "out", target="label", features=["tokens"], test=test, preprocessing=[Pad(8)]
    )
    assert read_samples(dataset, "test").inputs["tokens"].shape == (10, 8)


@pytest.mark.parametrize(
    ("changes", "steps", "message"),
    [
        (
            {},
            "",
            r"rows.jsonl \(JSON lines\): tokens: lists must have equal lengths, row 1 has 3 values, row 2 has 0 "
            r"\(0 to 8 in 60 rows\)\nPad them: preprocessing=\[Pad\(8, column=\"tokens\"\)",
        ),
        ({}, [Pad(7)], "tokens: row 10: the list has 8 values, more than Pad's length 7; the longest has 8"),
        ({"tokens": [1, None]}, [Pad(8)], "tokens: row 6: the list has a missing value"),
        ({"tokens": ["a"] * 2}, [Pad(8)], r"rows.jsonl \(JSON lines\)"),
        ({"tokens": None}, [Pad(8)], r"missing values in tokens \(1, first in row "),
    ],
)
def test_unfit_list_is_named_by_file_column_and_row(tmp_path: Path, changes: Any, steps: Any, message: str) -> None:
    rows = [{"tokens": row["tokens"], "label": row["label"]} for row in ROWS]
    rows[5] |= changes
    source = write_rows(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=message):
        load_dataset(source, tmp_path / "out", target="label", preprocessing=steps)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.jsonl", '{"tokens": [1], "label": "a"}', "token", "no field 'token', found tokens, label; did you mean"),
        (
            "a.jsonl",
            '{"tokens": 3, "label": "a"}',
            "tokens",
            "tokens: Pad needs a list in each row, the column holds int",
        ),
        ("a.jsonl", '{"tokens": ["x"], "label": "a"}', "tokens", "tokens: lists must hold numbers, got string"),
        ("a.jsonl", '{"tokens": [[1, 2], [3]], "label": "a"}', "tokens", "row 1: the inner lists must have 2 numbers"),
        ("a.jsonl", '{"tokens": [1], "label": "\xe9"}', "tokens", "line 1: must be UTF-8, got .* in another encoding"),
        ("a.jsonl", '[{"tokens": [1], "label": "a"}]', "tokens", "read as JSON lines, but its content is a JSON list"),
        ("a.parquet", '{"tokens": [1], "label": "a"}', "tokens", "read as Parquet, but its content is text"),
        (
            "a.csv",
            'tokens,label\n"[1; 2]",a',
            "tokens",
            r"tokens: row 1: must be a list of numbers such as \[1, 2, 3\]",
        ),
    ],
)
def test_wrong_file_is_refused_with_one_message(
    tmp_path: Path, name: str, content: str, column: str, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode("latin-1") + b"\n")
    with pytest.raises(UserError, match=message):
        load_dataset(
            str(file), tmp_path / "out", target="label", features=[column], preprocessing=[Pad(8, column=column)]
        )
    assert not (tmp_path / "out").exists()


def test_network_that_does_not_fit_is_named_with_its_inputs(tmp_path: Path) -> None:
    from mindspore import nn

    class Other(nn.Cell):
        def construct(self, ids, mask):
            return ids * mask

    source = write_rows(tmp_path / "rows.jsonl", [{"tokens": row["tokens"], "label": row["label"]} for row in ROWS])
    dataset = load_dataset(source, tmp_path / "out", target="label", preprocessing=[Pad(8, column="tokens", mask="m")])
    with pytest.raises(UserError, match="data: has the inputs tokens, m, and the network's construct takes ids, mask"):
        resolve_columns(dataset, "data", Other(), split="train", has_loss=True)


def test_rows_without_list_are_dropped_by_rule(tmp_path: Path) -> None:
    rows = [{"tokens": row["tokens"] or None, "label": row["label"]} for row in ROWS]
    source = write_rows(tmp_path / "rows.jsonl", rows)
    dataset = load_dataset(source, tmp_path / "out", target="label", preprocessing=[Pad(8)], missing="drop")
    assert dataset.report["dropped"] == 1


def test_waves_are_padded_by_declaration(tmp_path: Path) -> None:
    steps = [Standardize(), Pad(40, lengths="lengths")]
    dataset = load_dataset("waves", tmp_path / "out", preprocessing=steps)
    assert dataset.labels == ("sawtooth", "sine", "square")
    request = build_pipeline(dataset.preprocessing).inputs
    layout = build_layout(dataset, request or (), {}, steps=dataset.preprocessing["pre"])
    assert layout is not None, "requests have the lists as they are"
    assert (layout.columns, layout.target) == (("values",), ("label",))
    rows = RowPacker(layout).pack_rows([{"values": [1, 2, 3], "label": "sine"}, {"values": [0.5]}])
    assert [row.tolist() for row in rows["values"]] == [[1, 2, 3], [0.5]]
    assert dataset.report["lists"]["values"] == {"min": 12, "median": 26.0, "max": 40, "cut": 0.0}
    samples = read_samples(dataset, "test")
    values, lengths = samples.inputs["values"], samples.inputs["lengths"]
    assert (values.dtype, values.shape[1], lengths.dtype) == (np.float32, 40, np.int32)
    padding = np.arange(40) >= lengths[:, None]
    assert not values[padding].any()
    assert values[~padding].std() == pytest.approx(1, abs=0.05)
    with pytest.raises(UserError, match=r"waves \(generated\): values: lists must have equal lengths.*\nPad them: "):
        load_dataset("waves", tmp_path / "other")
