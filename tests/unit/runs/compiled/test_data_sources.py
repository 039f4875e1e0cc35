"""Local data are looked for, and examples of language models read, before a run's first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.runs.compiled.data_sources import check_local_sources
from kfp_mindspore.runs.compiled.sources import compile_text
from kfp_mindspore.runs.compiled.spec import convert_arguments, parse_spec

PAIR = json.dumps({"prompt": "a", "completion": "b"})
PAIRS = "".join(json.dumps({"prompt": str(number), "completion": "b"}) + "\n" for number in range(100))


@pytest.fixture(scope="module")
def specs() -> dict[str, Any]:
    names = ("chat_lora", "t5_rewrite", "semantic_search", "language_model", "tabular", "image_search")
    return {name: parse_spec(compile_text(name, "registry.example.com/mine:1")) for name in names}


@pytest.mark.parametrize(
    ("pipeline", "text", "message"),
    [
        ("chat_lora", PAIRS, ""),
        ("chat_lora", None, "data.jsonl: neither a named data set nor an existing path"),
        ("chat_lora", f"{PAIR}\n{{", r"data.jsonl: line 2 is invalid: must be JSON"),
        ("chat_lora", f"{PAIR}\n[]", r"data.jsonl: line 2 is invalid: must be an object, got list"),
        ("chat_lora", PAIR, r"held_out: 1 examples are too few to hold out 0\.05 of them"),
        ("t5_rewrite", '{"question": "a"}', "example 1 is invalid: needs messages, text, or prompt and completion"),
        ("language_model", PAIR, r"held_out: 1 examples are too few to hold out 0\.1 of them"),
        ("semantic_search", "", "data.jsonl: has no examples"),
        ("semantic_search", PAIR, ""),
    ],
)
def test_examples_are_read_before_run(
    pipeline: str, text: str | None, message: str, specs: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "data.jsonl"
    if text is not None:
        file.write_text(text)
    if message:
        with pytest.raises(UserError, match=message):
            check_local_sources(specs[pipeline], {"data": str(file)})
    else:
        check_local_sources(specs[pipeline], {"data": str(file)})


def test_pictures_are_looked_for_before_run(specs: dict[str, Any], tmp_path: Path) -> None:
    arguments = {"source": "clip", "pictures": str(tmp_path), "captions": str(tmp_path / "captions.jsonl")}
    with pytest.raises(UserError, match=r"captions\.jsonl: neither a named data set nor an existing path"):
        check_local_sources(specs["image_search"], arguments)
    check_local_sources(specs["image_search"], {**arguments, "captions": "", "pictures": "s3://photos"})
    with pytest.raises(UserError, match="absent: neither"):
        check_local_sources(specs["image_search"], {**arguments, "pictures": str(tmp_path / "absent")})


def test_options_are_checked_before_run(specs: dict[str, Any]) -> None:
    arguments = {"lora_rank": -1, "metric": "bleu"}
    with pytest.raises(ValidationError, match=r"metric: must be one of perplexity.*lora_rank: must be an integer"):
        convert_arguments(specs["chat_lora"], arguments)
    with pytest.raises(ValidationError, match="width: must be an even multiple of 4 heads, got 20"):
        convert_arguments(specs["language_model"], {"width": 20})


def test_missing_table_is_named_before_run(specs: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "sales.csv"
    with pytest.raises(UserError, match=r"sales.csv: neither a named data set nor an existing path"):
        check_local_sources(specs["tabular"], {"dataset": str(file)})
    file.touch()
    for source in (str(file), "wine", "s3://bucket/sales.csv"):
        check_local_sources(specs["tabular"], {"dataset": source})


def test_names_and_uris_are_not_read(specs: dict[str, Any]) -> None:
    for data in ("chatterbot", "s3://bucket/pairs.jsonl", "new_testament"):
        check_local_sources(specs["chat_lora"], {"data": data})


def test_run_without_examples_exits_with_2_before_its_first_step(
    local_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "chat_lora", "-p", "data=missing.jsonl"]) == 2
    printed = capsys.readouterr().err
    assert printed.count("missing.jsonl") == 1
    assert "import-language-model" not in printed
    assert not list((local_home / "runs").iterdir())
