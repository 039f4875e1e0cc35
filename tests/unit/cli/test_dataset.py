"""`kfp-mindspore dataset`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_mindspore.cli.main import run
from tests.support.models import data_sources


@pytest.fixture(autouse=True)
def working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    data_sources.write_csv(Path("table.csv"))


def test_load_and_inspect_table(capsys: pytest.CaptureFixture[str]) -> None:
    roles = ["--input", "size=width,height", "--input", "city=city", "--ids", "user", "--split", "time:day"]
    assert run(["dataset", "load", "table.csv", "data", *roles]) == 0
    text = capsys.readouterr().out
    for part in (
        "table: classification (guessed: the target has 2 different integers)",
        "samples: 39 train, 9 validation, 12 test",
        "feature size: float32 [2] = width, height",
        "id user: int32 []",
        "preprocessing: Normalize(size), Vocabulary(city, 3 values)",
    ):
        assert part in text
    assert run(["dataset", "inspect", "data"]) == 0
    assert "  width: min -" in capsys.readouterr().out
    assert run(["dataset", "inspect", "data", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["task"], described["splits"]["test"]) == ("classification", 12)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--test", "table.csv", "--target", "height", "--features", "width,city", "--missing", "0"], 60),
        (["--preprocessing", "steps.json", "--features", "width"], 12),
    ],
)
def test_options_are_passed(arguments: list[str], count: int, capsys: pytest.CaptureFixture[str]) -> None:
    Path("steps.json").write_text('[{"type": "MinMax"}]')
    assert run(["dataset", "load", "table.csv", "data", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["test"] == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.csv"], "absent.csv: neither a named data set nor an existing path"),
        (["table.csv", "--target", "colour"], "table.csv (CSV): no field 'colour', found width, height, city"),
        (["table.csv", "--target", "heigth"], "day, label; did you mean 'height'?"),
        (["table.csv", "--preprocessing", "[{"], "preprocessing: not valid JSON"),
        (["table.csv", "--image-size", "8"], "must be HEIGHTxWIDTH"),
        (["table.csv", "--input", "x="], "--input x: must name at least one field"),
    ],
)
def test_mistakes_exit_with_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    source, *options = arguments
    assert run(["dataset", "load", source, "data", *options]) == 2
    assert message in capsys.readouterr().err
    assert not Path("data").exists()


def test_repeated_names_are_joined(capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.csv").write_text(
        "y1,y2,a,b,c,d\n" + "".join(f"{i},{i + 1},{i % 7},{i % 5},{i},{-i}\n" for i in range(40))
    )
    words = ["--target", "y1", "--target", "y2", "--features", "a", "--features", "b", "--ids", "c", "--ids", "d"]
    assert run(["dataset", "load", "two.csv", "data", *words, "--json"]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert [column["fields"] for column in columns if column["role"] in ("feature", "target")] == [
        ["a", "b"], ["y1", "y2"],
    ]  # fmt: skip
    assert [column["name"] for column in columns if column["role"] == "id"] == ["c", "d"]
