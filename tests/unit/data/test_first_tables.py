"""Tables as their owners first bring them: headers, delimiters, class names, postcodes, infinities, images."""

from __future__ import annotations

import gzip
import io
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from kfp_mindspore.data import load_dataset
from kfp_mindspore.data.report import render_report
from kfp_mindspore.data.rows import read_rows
from kfp_mindspore.data.sources.delimiters import resolve_delimiter
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.rows import build_layout
from kfp_mindspore.formats.tensors import TensorSpec

COMPOSED = "größe"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)


def write(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return path


def make_rows(form: str, count: int = 60) -> list[str]:
    return [form.format(index=index, half=index / 2, kind="ab"[index % 2]) for index in range(count)]


def test_equal_headers_are_refused_by_name_and_place(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "size,age,size,price", *make_rows("{index},1,2,{half}"))
    with pytest.raises(UserError, match=r"has 2 columns with the name 'size', the columns 1 and 3") as caught:
        load_dataset(str(table), tmp_path / "data", target="price")
    assert "--features" in caught.value.hint
    dataset = load_dataset(str(table), tmp_path / "data", target="price", features=["age"])
    assert dataset.list_columns("feature")[0].fields == ("age",)


def test_equal_keys_of_parquet_are_refused(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array([1.5] * 40)] * 3, ["a", "a", "price"])
    parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match="has 2 columns with the name 'a'"):
        load_dataset(str(tmp_path / "t.parquet"), tmp_path / "data", target="price")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("packed", [False, True])
def test_certain_delimiter_is_found(tmp_path: Path, mark: str, packed: bool) -> None:
    text = "\n".join(["size;kind;price", *make_rows("{index};{kind};{half}")]).replace(";", mark)
    table = tmp_path / ("t.csv.gz" if packed else "t.csv")
    table.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    dataset = load_dataset(str(table), tmp_path / "data", target="price")
    assert dataset.report["format"] == "CSV"
    assert [column.name for column in dataset.list_columns("feature")] == ["features_numbers", "kind"]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a,b\n1,2\n", "t.csv", ","),
        ("a;b\n1,5;2,5\n", "t.csv", ";"),
        ('"a;b",c\n1,2\n', "t.csv", ","),
        ("text\nred; green\nblue\n", "t.csv", ","),
        ("a;b|c\n1;2|3\n", "t.csv", ","),
        ("a\tb\n1\t2\n", "t.tsv", "\t"),
        ("a,b\n1,2\n", "t.tsv", ","),
        ("", "t.csv", ","),
    ],
)
def test_delimiter_is_found_where_it_is_certain(tmp_path: Path, text: str, name: str, expected: str) -> None:
    (tmp_path / name).write_text(text)
    assert resolve_delimiter(tmp_path / name) == expected


def test_stated_delimiter_is_used_in_load_and_prediction(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "size~price", *make_rows("{index}~{half}"))
    dataset = load_dataset(str(table), tmp_path / "data", target="price", delimiter="~")
    specs = [TensorSpec("features", "float32", (-1, 1))]
    layout = build_layout(dataset, specs, {})
    assert read_rows(table, specs, layout, delimiter="~").inputs["features"][:3].ravel().tolist() == [0, 1, 2]
    one = write(tmp_path / "one.csv", "a~b", "1~2")
    two = [TensorSpec("x", "float32", (-1, 2))]
    assert read_rows(one, two, delimiter="~").inputs["x"].tolist() == [[1, 2]]
    for tabs in ("tab", "\t"):
        assert read_rows(write(one, "a\tb", "1\t2"), two, delimiter=tabs).inputs["x"].tolist() == [[1, 2]]
    assert read_rows(write(one, "a;b", "1;2"), two).inputs["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize("start", ["\n\n", "\ufeff", "\r\n"])
def test_header_is_no_row(tmp_path: Path, start: str) -> None:
    table = write(tmp_path / "t.csv", f"{start}größe,price", *make_rows("{index},{half}"))
    dataset = load_dataset(str(table), tmp_path / "data", target="price")
    assert dataset.list_columns("feature")[0].fields == ("größe",)
    assert sum(dataset.splits.values()) == 60


@pytest.mark.parametrize("delimiter", ["::", '"', "\n", "é"])
def test_invalid_delimiter_is_refused(tmp_path: Path, delimiter: str) -> None:
    with pytest.raises(ValidationError, match="delimiter: must be one ASCII character or tab"):
        load_dataset("wine", tmp_path / "data", delimiter=delimiter)


def test_whole_floating_labels_get_advice(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", "size,label", *(f"{index},{index % 3}.0" for index in range(60)))
    report = render_report(load_dataset(str(table), tmp_path / "data"))
    assert "3 different whole ones: if they are classes, give --task classification" in report
    dataset = load_dataset(str(table), tmp_path / "data", task="classification")
    assert dataset.labels == ("0", "1", "2")


def test_classes_that_look_alike_are_reported_or_joined(tmp_path: Path) -> None:
    names = ["cat", "cat ", "Cat", "dog"]
    table = write(tmp_path / "t.csv", "size,label", *(f"{index},{names[index % 4]}" for index in range(80)))
    dataset = load_dataset(str(table), tmp_path / "data")
    assert set(dataset.labels) == set(names)
    assert "the classes 'Cat' and 'cat' and 'cat ' look alike: --merge-labels blanks" in render_report(dataset)
    assert load_dataset(str(table), tmp_path / "data", merge_labels="blanks").labels == ("Cat", "cat", "dog")
    joined = load_dataset(str(table), tmp_path / "data", merge_labels="case")
    assert joined.labels == ("cat", "dog")
    assert "joined with the class 'cat': 'Cat', 'cat '" in render_report(joined)


def test_leading_zeros_are_reported_and_kept_by_option(tmp_path: Path) -> None:
    rows = [f"{'01234' if index % 2 else '12345'},{index},{half / 7}" for index, half in enumerate(range(60))]
    table = write(tmp_path / "t.csv", "postcode,size,price", *rows)
    report = render_report(load_dataset(str(table), tmp_path / "data", target="price"))
    assert "postcode has leading zeros and is read as numbers, such as 01234: --texts postcode keeps them" in report
    assert "size has leading zeros" not in report
    dataset = load_dataset(str(table), tmp_path / "data", target="price", texts=["postcode"])
    assert set(dataset.read_columns("train")["postcode"].tolist()) == {b"01234", b"12345"}
    assert "postcode" not in render_report(dataset).partition("warning")[2]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_row_numbers_are_left_out_with_a_word(tmp_path: Path, name: str) -> None:
    table = write(tmp_path / "t.csv", f"{name},size,price", *make_rows("{index},1{index},{half}"))
    dataset = load_dataset(str(table), tmp_path / "data", target="price")
    assert dataset.list_columns("feature")[0].fields == ("size",)
    assert f"left out: {name or 'a column without a name'}, row numbers as pandas writes them" in render_report(dataset)
    if name:
        used = load_dataset(str(table), tmp_path / "data", target="price", features=[name, "size"])
        assert used.list_columns("feature")[0].fields == (name, "size")


def test_index_of_parquet_is_left_out_with_a_word(tmp_path: Path) -> None:
    table = pyarrow.table({"size": [1.5, 2.5] * 20, "price": [0.5] * 40, "__index_level_0__": list(range(40))})
    parquet.write_table(table, tmp_path / "t.parquet")
    dataset = load_dataset(str(tmp_path / "t.parquet"), tmp_path / "data", target="price")
    assert dataset.list_columns("feature")[0].fields == ("size",)
    assert "left out: __index_level_0__" in render_report(dataset)


def test_infinity_is_refused_with_field_and_row(tmp_path: Path) -> None:
    rows = make_rows("{index},{half},{half}")
    rows[7] = "1,inf,3"
    table = write(tmp_path / "t.csv", "size,weight,price", *rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match="weight: must hold finite numbers, got inf in row 8, 1 in all") as caught:
            load_dataset(str(table), tmp_path / "data", target="price")
        assert "--infinite missing" in caught.value.hint
        with pytest.raises(UserError, match=r"missing values in weight \(1, first in row 8\)"):
            load_dataset(str(table), tmp_path / "data", target="price", infinite="missing")
        dataset = load_dataset(str(table), tmp_path / "data", target="price", infinite="missing", missing="drop")
    assert sum(dataset.splits.values()) == 59
    assert "infinite numbers, counted as missing: weight 1" in render_report(dataset)


@pytest.mark.parametrize(("written", "named"), [(DECOMPOSED, COMPOSED), (COMPOSED, DECOMPOSED)])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".npz"])
def test_names_are_compared_in_nfc(tmp_path: Path, written: str, named: str, suffix: str) -> None:
    table = tmp_path / f"t{suffix}"
    values = [index / 3 for index in range(40)]
    if suffix == ".parquet":
        parquet.write_table(pyarrow.table({written: values, "price": values}), table)
    elif suffix == ".npz":
        np.savez(table, **{written: np.array(values), "price": np.array(values)})
    elif suffix == ".csv":
        write(table, f"{written},price", *(f"{value},{value}" for value in values))
    else:
        table.write_text("".join(f'{{"{written}": {value}, "price": {value}}}\n' for value in values), "utf-8")
    dataset = load_dataset(str(table), tmp_path / "data", target="price", inputs={"x": [named]})
    assert dataset.list_columns("feature")[0].fields == (COMPOSED,)
    if suffix == ".csv":
        specs = [TensorSpec("x", "float32", (-1, 1))]
        layout = build_layout(dataset, specs, {})
        assert len(read_rows(table, specs, layout).inputs["x"]) == 40


def make_image(mode: str, form: str = "PNG", size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, 0).save(buffer, form)
    return buffer.getvalue()


def write_folder(path: Path, odd: bytes, name: str = "odd.png") -> Path:
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for index in range(10):
            (path / label / f"{index}.png").write_bytes(make_image("RGB"))
    (path / "dog" / name).write_bytes(odd)
    return path


UNUSABLE = {
    "16 bits": (make_image("I;16"), "must have 8 bits a channel, its mode is I;16"),
    "truncated": (make_image("RGB", size=(64, 64))[:-40], "must be a whole PNG or JPEG image"),
    "too long": (make_image("1", size=(65_600, 2)), "must have sides of at most 65535"),
    "another format": (make_image("RGB", "GIF"), "must be a PNG or JPEG image"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_image_is_refused_at_load_by_path(tmp_path: Path, kind: str) -> None:
    content, message = UNUSABLE[kind]
    folder = write_folder(tmp_path / "photos", content)
    with pytest.raises(UserError) as caught:
        load_dataset(str(folder), tmp_path / "data")
    assert caught.value.message.startswith(f"{folder}/dog/odd.png: {message}")


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_image_of_table_is_refused_at_load_by_row(tmp_path: Path, kind: str) -> None:
    content, message = UNUSABLE[kind]
    images = [make_image("RGB")] * 40
    images[12] = content
    parquet.write_table(pyarrow.table({"photo": images, "label": ["a", "b"] * 20}), tmp_path / "t.parquet")
    steps = [{"type": "DecodeImage", "column": "photo"}, {"type": "Resize", "size": [8, 8], "column": "photo"}]
    with pytest.raises(UserError, match=f"photo: image in row 13: {message}"):
        load_dataset(str(tmp_path / "t.parquet"), tmp_path / "data", inputs={"photo": "photo"}, preprocessing=steps)


@pytest.mark.parametrize(
    ("mode", "form"), [("CMYK", "JPEG"), ("P", "PNG"), ("LA", "PNG"), ("RGBA", "PNG"), ("1", "PNG")]
)
def test_image_of_other_mode_is_decoded_after_load(tmp_path: Path, mode: str, form: str) -> None:
    from kfp_mindspore.data import read_samples

    name, form = ("odd.jpg", "JPEG") if mode == "CMYK" else ("odd.png", "PNG")
    load_dataset(str(write_folder(tmp_path / "photos", make_image(mode, form), name)), tmp_path / "data")
    for split in ("train", "validation", "test"):
        assert read_samples(tmp_path / "data", split).inputs["image"].shape[1:] == (3, 8, 8)


def test_folder_with_tables_by_split_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    write(folder / "train.csv", "size,price", *make_rows("{index},{half}"))
    write(folder / "test.csv", "size,price", *make_rows("{index},{half}", 7))
    dataset = load_dataset(str(folder), tmp_path / "data", target="price")
    assert dict(dataset.splits) == {"train": 51, "validation": 9, "test": 7}


@pytest.mark.parametrize("name", ["artifact", "folder/rows.csv"])
def test_artifact_without_suffix_or_with_one_file_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    write(file, "size;price", *make_rows("{index};{half}"))
    source = file if file.name == "artifact" else file.parent
    assert sum(load_dataset(str(source), tmp_path / "data", target="price").splits.values()) == 60
    file.write_text("".join(f'{{"size": {index}, "price": {index / 2}}}\n' for index in range(40)))
    if source == file:
        assert sum(load_dataset(str(source), tmp_path / "data", target="price").splits.values()) == 40
