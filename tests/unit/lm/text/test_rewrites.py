"""The generated examples, and how an encoder-decoder's tuning and evaluation refuse what does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.lm.text.rewrites import build_rewrites, spell_number, spell_ordinal
from tests.support.language.tiny_t5 import write_t5

pytestmark = pytest.mark.mindspore


def test_examples_are_deterministic_and_never_copies() -> None:
    records = build_rewrites()
    pairs = {record["prompt"]: record["completion"] for record in records}
    assert len(pairs) == len(records) == 4000
    assert records == build_rewrites() != build_rewrites(1)
    assert not [prompt for prompt, completion in pairs.items() if prompt == completion]
    assert pairs["two hundred and six"] == "206"
    assert (spell_number(999), spell_number(20)) == ("nine hundred and ninety-nine", "twenty")
    assert [spell_ordinal(day) for day in (3, 12, 20, 21)] == ["third", "twelfth", "twentieth", "twenty-first"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tuning_and_evaluation_of_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_t5(tmp_path / "source")
    base, pairs, tuned = tmp_path / "base", tmp_path / "pairs.jsonl", tmp_path / "tuned"
    assert run(["lm", "import", str(tmp_path / "source"), "-o", str(base)]) == 0
    lines = [{"prompt": f"w{3 + n} w{4 + n % 9}", "completion": "w7 w8"} for n in range(30)]
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["lm", "finetune", str(base), str(pairs), "-o", str(tuned), "--held-out", "0.3", "--length", "16"]
    assert run(command) == 2
    assert "lora_rank: must be 0 for an encoder-decoder" in capsys.readouterr().err
    options = ["--lora-rank", "0", "--epochs", "15", "--learning-rate", "0.03", "--batch-size", "8", "--json"]
    assert run([*command, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["dropped"], result["held_out"] + result["examples"]) == (0, 30)
    command = ["lm", "evaluate", str(tuned / "model"), str(tuned / "held_out.jsonl"), "--base", str(base), "--json"]
    assert run([*command, "--min-improvement", "0.9", "--max-tokens", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "exact_match"
    assert found["model"]["exact_match"] >= 0.9
    assert found["base"]["exact_match"] == 0
    assert found["model"]["perplexity"] == pytest.approx(result["perplexity"], rel=0.05)
    pairs.write_text('{"prompt": "w3", "completion": "w4"}\n{"text": "w3"}\n')
    assert run(["lm", "evaluate", str(base), str(pairs)]) == 2
    assert "example 2 is invalid: an encoder-decoder needs" in capsys.readouterr().err
