"""A language model is fine-tuned on pairs and evaluated beside its base, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.bundle.causal import import_model, read_model
from kfp_mindspore.lm.network.lora import merge_adapter
from kfp_mindspore.lm.options import EvaluationOptions, FinetuneOptions
from kfp_mindspore.lm.sources.peft import read_adapter
from kfp_mindspore.lm.text.examples import ExampleEncoder, hold_out, read_examples
from tests.support.language.tiny_language_model import write_pairs, write_source

pytestmark = [pytest.mark.mindspore, pytest.mark.slow, pytest.mark.timeout(900)]

OPTIONS = ("--epochs", "6", "--learning-rate", "0.05", "--length", "64", "--batch-size", "4", "--lora-rank", "4")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tuning")
    import_model(write_source(directory / "source"), directory / "base")
    write_pairs(directory / "pairs.jsonl")
    return directory / "base"


@pytest.fixture(scope="module")
def tuned(base: Path) -> Path:
    output = base.parent / "tuned"
    assert run(["lm", "finetune", str(base), str(base.parent / "pairs.jsonl"), "-o", str(output), *OPTIONS]) == 0
    return output


def test_adapter_and_merged_bundle_are_written(base: Path, tuned: Path) -> None:
    model = read_model(base)
    adapter, lora = read_adapter(tuned / "adapter", model.config)
    assert lora.lora_rank == 4
    merged = merge_adapter(model.config, model.weights, adapter, lora)
    for name, array in read_model(tuned / "model").weights.items():
        np.testing.assert_array_equal(array, merged[name])
    assert "Fine-tuning" in (tuned / "curves.html").read_text()
    held = read_examples(tuned / "held_out.jsonl")
    assert 0 < len(held) < 30


def test_output_in_base_model_is_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    former = sorted(base.iterdir())
    assert run(["lm", "finetune", str(base), str(base.parent / "pairs.jsonl"), "-o", str(base), *OPTIONS]) == 2
    assert "is the input" in capsys.readouterr().err
    assert sorted(base.iterdir()) == former


def test_gate_compares_tuned_model_with_base(
    base: Path, tuned: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    held, report = str(tuned / "held_out.jsonl"), tmp_path / "report.html"
    command = ["lm", "evaluate", str(tuned / "model"), held, "--base", str(base), "--json", "--generated", "3"]
    assert run([*command, "--min-improvement", "0.999", "--report", str(report)]) == 3
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["model"]["perplexity"] < 0.8 * result["base"]["perplexity"]
    assert result["improvement"] == pytest.approx(1 - result["model"]["perplexity"] / result["base"]["perplexity"])
    assert set(result["base"]) == {"perplexity", "exact_match", "rouge_l", "valid_json"}
    assert result["passed"] is False
    assert "must be at least 0.999" in printed.err
    assert "gate not met" in report.read_text()
    assert "the lazy fox" in report.read_text()
    # A gate without what it compares with would pass every model.
    assert run(["lm", "evaluate", str(tuned / "model"), held, "--min-improvement", "0.1"]) == 2
    assert "min_improvement: needs a base" in capsys.readouterr().err


def test_equal_prompts_are_held_out_together() -> None:
    records = [{"prompt": str(number % 50), "completion": str(number)} for number in range(200)]
    training, held = hold_out(records, 0.3)
    assert len(training) + len(held) == 200
    assert not {record["prompt"] for record in training} & {record["prompt"] for record in held}
    assert 0.15 < len(held) / 200 < 0.45


def test_few_examples_are_refused() -> None:
    with pytest.raises(UserError, match="2 examples are too few"):
        hold_out([{"prompt": "a"}, {"prompt": "a"}], 0.5)


def test_example_without_known_field_is_named() -> None:
    with pytest.raises(ValidationError, match=r"example 2 is invalid: needs messages, .* got question, answer"):
        hold_out([{"prompt": "a", "completion": "b"}, {"question": "a", "answer": "b"}], 0.5)


def test_pair_is_encoded_as_chat(base: Path) -> None:
    record = {"prompt": "dog?", "completion": "fox"}
    ids, counts = ExampleEncoder(base, chat=True).encode(record)
    tokenizer = ExampleEncoder(base, chat=False).tokenizer
    text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    assert text == "<|im_start|>user\ndog?<|im_end|>\n<|im_start|>assistant\nfox<|im_end|>\n"
    answer = tokenizer.decode(ids[counts].tolist(), skip_special_tokens=False)
    assert answer == "fox<|im_end|>\n"
    plain, _ = ExampleEncoder(base, chat=False).encode(record)
    assert tokenizer.decode(plain.tolist(), skip_special_tokens=False) == "dog?fox<|im_end|>"


def test_wrong_example_is_named(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "a", "completion": "b"}\n{"question": "c"}\n')
    assert run(["lm", "evaluate", str(base), str(file)]) == 2
    assert "example 2 is invalid: must have text, prompt with completion, or messages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FinetuneOptions(held_out=1.0), "held_out: must be"),
        (lambda: FinetuneOptions(lora_rank=-1), "lora_rank: must be"),
        (lambda: EvaluationOptions(metric="bleu"), "metric: must be"),
    ],
)
def test_wrong_option_is_named(build: object, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        build()  # type: ignore[operator]
    assert message in str(error.value)
