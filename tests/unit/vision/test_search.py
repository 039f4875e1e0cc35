"""Indexes of pictures: queries by words and by pictures, evaluation, unreadable pictures, foreign files."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import NotFoundError, UserError, ValidationError
from kfp_mindspore.vision.index_options import IndexOptions
from kfp_mindspore.vision.search import (
    PictureEncoder,
    PictureIndex,
    PictureReader,
    evaluate_captions,
    index_pictures,
    render_page,
    search_pictures,
)
from tests.support.tiny_vision import LENGTH, SPACE, write_clip, write_dual

pytestmark = pytest.mark.mindspore

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (10, 20, 230)}


def encode(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("search")
    assert run(["vision", "import", str(write_clip(root / "source")), "-o", str(root / "clip")]) == 0
    return root / "clip"


@pytest.fixture(scope="module")
def encoder(model: Path) -> PictureEncoder:
    return PictureEncoder(model)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty noisy pictures in two folders, each name with its colour."""
    random, folder = np.random.default_rng(0), tmp_path / "photos"
    for number in range(40):
        name, colour = list(COLOURS.items())[number % 3]
        pixels = np.clip(np.array(colour) + random.integers(-60, 60, (20 + number, 30, 3)), 0, 255).astype(np.uint8)
        file = folder / f"{number // 20}" / f"{name}_{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(Image.fromarray(pixels)))
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.mark.slow
def test_index_finds_picture_by_itself_and_survives_its_file(
    encoder: PictureEncoder, folder: Path, tmp_path: Path
) -> None:
    index = index_pictures(str(folder), encoder)
    assert (len(index.ids), index.vectors.shape, index.skipped) == (40, (40, SPACE), {})
    index.write(tmp_path / "photos.parquet")
    read = PictureIndex.read(tmp_path / "photos.parquet")
    assert list(read.ids) == list(index.ids)
    np.testing.assert_array_equal(read.vectors, index.vectors)
    for name in (index.ids[0], index.ids[33]):
        found = search_pictures(read, encoder, picture=folder / name, count=3)
        assert found.matches[0][0] == name
        assert found.matches[0][1] == pytest.approx(1, abs=1e-5)
        assert found.matches[1][1] < found.matches[0][1]
    (expected,) = encoder.embed_text(["two red circles"]) @ index.vectors.T
    found = search_pictures(read, encoder, text="two red circles", count=40)
    np.testing.assert_allclose([score for _, score in found.matches], np.sort(expected)[::-1], atol=1e-6)
    assert found.render().count("data:image/png;base64,") == 40
    assert found._repr_html_().count("<img ") == 40
    (folder / found.matches[0][0]).unlink()
    assert found._repr_html_().count("(gone)") == 1


@pytest.mark.slow
def test_command_indexes_and_searches(
    model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index, page = str(tmp_path / "photos.parquet"), tmp_path / "found.html"
    captions = tmp_path / "captions.jsonl"
    captions.write_text(json.dumps({"image": "0/red_00.png", "caption": "red"}) + "\n")
    words = ["--model", str(model), "-o", index, "--captions", str(captions), "--json"]
    assert run(["vision", "index", str(folder), *words]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["pictures"], described["skipped"]) == (40, {})
    assert described["scores"].keys() == {"model", "words"}
    # Again, since it is replaced.
    assert run(["vision", "index", str(folder), "--model", str(model), "-o", index, "--max-pictures", "30"]) == 0
    assert "30 pictures, 0 left out" in capsys.readouterr().out
    assert run(["vision", "search", index, "red", "--model", str(model), "--count", "2", "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SCORE", "ID"]
    assert len(lines) == 3
    assert page.read_text().count("data:image/png;base64,") == 2
    picture = str(folder / "0/green_01.png")
    assert run(["vision", "search", index, "--picture", picture, "--model", str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"][0]["id"] == "0/green_01.png"


def prepare_broken() -> dict[str, tuple[bytes, str]]:
    """Return pictures that cannot be read, with what is said of them."""
    whole = encode(Image.new("RGB", (40, 40)))
    return {
        "truncated.png": (whole[:60], "must be a whole PNG or JPEG file"),
        "text.jpg": (b"no picture", "must be a whole PNG or JPEG file"),
        "empty.png": (b"", "no bytes"),
        "deep.png": (encode(Image.fromarray(np.zeros((9, 9), np.uint16))), "must have 8 bits a channel"),
        "large.png": (encode(Image.new("1", (20_000, 2000))), "must have at most 33554432 pixels"),
        "gif.png": (encode(Image.new("RGB", (9, 9)), "GIF"), "must be a whole PNG or JPEG file"),
    }


@pytest.mark.slow
def test_unreadable_pictures_are_named_and_left_out_unless_strict(
    encoder: PictureEncoder, model: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = prepare_broken()
    for name, (content, _) in broken.items():
        (folder / name).write_bytes(content)
    (folder / "cmyk.jpg").write_bytes(encode(Image.new("CMYK", (30, 30)), "JPEG"))
    (folder / "pixel.png").write_bytes(encode(Image.new("RGB", (1, 1))))
    index = index_pictures(str(folder), encoder)
    assert index.skipped.keys() == broken.keys()
    assert [name for name, (_, text) in broken.items() if text not in index.skipped[name]] == []
    assert {"cmyk.jpg", "pixel.png"} < set(index.ids)
    assert len(index.ids) == 42
    np.testing.assert_allclose(np.linalg.norm(index.vectors, axis=1), 1, atol=1e-5)
    assert "deep.png: must have 8 bits" in render_page("Pictures", [], None, index.skipped)
    command = ["vision", "index", str(folder), "--model", str(model), "-o", str(tmp_path / "x.parquet")]
    assert run([*command, "--strict"]) == 2
    assert "deep.png: must have 8 bits a channel" in capsys.readouterr().err
    assert not (tmp_path / "x.parquet").exists()
    assert run(command) == 0
    assert "left out: text.jpg: must be a whole PNG or JPEG file" in capsys.readouterr().err


@pytest.mark.slow
def test_folder_without_readable_picture_is_refused(encoder: PictureEncoder, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"none of 1 pictures can be read; a\.png: must be a whole PNG"):
        index_pictures(str(tmp_path), encoder)


@pytest.mark.slow
def test_pictures_of_a_store_are_as_those_of_a_folder(encoder: PictureEncoder, folder: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    system = MemoryFileSystem()
    system.put(str(folder), "/photos", recursive=True)
    local = index_pictures(str(folder), encoder, IndexOptions(max_pictures=4))
    index = index_pictures("memory://photos", encoder, IndexOptions(max_pictures=4))
    assert list(index.ids) == list(local.ids)
    np.testing.assert_allclose(index.vectors, local.vectors, atol=1e-6)
    assert index.locate(index.ids[0]) == f"memory://photos/{index.ids[0]}"
    found = search_pictures(index, encoder, text="red", count=1)
    assert "data:image/png" in found.render()
    system.rm("/photos", recursive=True)


@pytest.mark.slow
def test_list_of_addresses_is_a_source(encoder: PictureEncoder, folder: Path, tmp_path: Path) -> None:
    files = [folder / "0/red_00.png", folder / "absent.png"]
    (tmp_path / "list.txt").write_text("\n".join(map(str, files)))
    index = index_pictures(str(tmp_path / "list.txt"), encoder)
    assert list(index.ids) == [str(files[0])]
    assert index.skipped == {str(files[1]): "cannot be read: No such file or directory"}
    assert index.locate(index.ids[0]) == str(files[0])


def test_source_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no picture, expected files that end in"):
        PictureReader().list(str(tmp_path))
    with pytest.raises(NotFoundError, match="absent"):
        PictureReader().list(str(tmp_path / "absent"))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no index"])
def test_file_that_is_no_index_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(UserError, match="not an index of pictures"):
        PictureIndex.read(tmp_path / "x.parquet")


def test_table_without_vectors_is_no_index_and_is_not_replaced(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "table.parquet"
    parquet.write_table(pyarrow.table({"id": ["a"], "vector": [1.0]}), file)
    with pytest.raises(UserError, match="not an index of pictures"):
        PictureIndex.read(file)
    index = PictureIndex("", "", ["a"], np.ones((1, 4), np.float32), {})
    with pytest.raises(UserError, match="is a file with other content"):
        index.write(file)


@pytest.mark.slow
def test_index_of_another_model_is_refused(
    encoder: PictureEncoder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = index_pictures(str(folder), encoder, IndexOptions(max_pictures=2))
    index.write(tmp_path / "index.parquet")
    source = write_dual(tmp_path / "source", "siglip")
    assert run(["vision", "import", str(source), "-o", str(tmp_path / "other")]) == 0
    assert run(["vision", "search", str(tmp_path / "index.parquet"), "cat", "--model", str(tmp_path / "other")]) == 2
    assert "its pictures were embedded by another model" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda folder: {"text": "cat " * 50}, f"must have at most {LENGTH} tokens"),
        (lambda folder: {"text": " "}, "query: must not be empty"),
        (lambda folder: {}, "query: give either a text or a picture"),
        (lambda folder: {"text": "a", "picture": folder / "0/red_00.png"}, "query: give either a text or a picture"),
        (lambda folder: {"picture": folder / "absent.png"}, "absent.png: cannot be read"),
        (lambda folder: {"picture": folder / "notes.txt"}, "notes.txt: must be a whole PNG or JPEG file"),
        (lambda folder: {"text": "a", "count": 0}, "count: must be 1 to 100, got 0"),
        (lambda folder: {"text": "a", "count": 101}, "count: must be 1 to 100, got 101"),
    ],
)
def test_bad_query_is_refused(
    encoder: PictureEncoder, folder: Path, query: Callable[[Path], dict[str, Any]], message: str
) -> None:
    index = index_pictures(str(folder), encoder, IndexOptions(max_pictures=2))
    with pytest.raises(UserError) as refused:
        search_pictures(index, encoder, **query(folder))
    assert message in str(refused.value)


@pytest.mark.slow
def test_captions_are_searched_by_model_and_by_words(encoder: PictureEncoder, folder: Path, tmp_path: Path) -> None:
    (folder / "broken.png").write_bytes(b"")
    index = index_pictures(str(folder), encoder)
    lines = [{"image": name, "caption": Path(name).stem.split("_")[0]} for name in index.ids]
    lines += [{"image": index.ids[5], "caption": "only this one"}, {"image": "broken.png", "caption": "broken"}]
    (tmp_path / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluation = evaluate_captions(index, encoder, str(tmp_path / "captions.jsonl"))
    # Equal captions are one query, and the names have the colours.
    assert evaluation.queries == 3
    assert [example.query for example in evaluation.examples] == ["blue", "green", "red"]
    assert evaluation.scores["words"] == {"recall_at_5": 1.0, "mrr": 1.0}
    similarities = encoder.embed_text(["blue", "green", "red"]) @ index.vectors.T
    firsts = [np.array(index.ids)[np.argsort(-row)[:5]] for row in similarities]
    hits = [any(name in one for one in first) for name, first in zip(("blue", "green", "red"), firsts, strict=True)]
    assert evaluation.scores["model"]["recall_at_5"] == pytest.approx(np.mean(hits))
    assert evaluation.improvement == pytest.approx(np.mean(hits) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image": "0/red_00.png"}', "line 1 is invalid: caption: must be a text"),
        ('{"image": "absent.png", "caption": "a"}', "line 1 is invalid: image: 'absent.png' is not indexed"),
        ('{"image": "0/red_00.png", "caption": "' + "cat " * 50 + '"}', f"must have at most {LENGTH} tokens"),
        ("", "has no examples"),
    ],
)
def test_bad_captions_are_refused(
    encoder: PictureEncoder, folder: Path, tmp_path: Path, line: str, message: str
) -> None:
    index = index_pictures(str(folder), encoder)
    (tmp_path / "captions.jsonl").write_text(line)
    with pytest.raises(UserError) as refused:
        evaluate_captions(index, encoder, str(tmp_path / "captions.jsonl"))
    assert message in str(refused.value)


def test_options_are_checked() -> None:
    with pytest.raises(ValidationError, match="max_pictures: must be an integer ≥ 0, got -1"):
        IndexOptions(max_pictures=-1)
