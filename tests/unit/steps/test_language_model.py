"""The components that import, fine-tune and evaluate language models, one after the other on a tiny network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from components.evaluation.evaluate_language_model.component import evaluate_language_model
from components.training.finetune_language_model.component import finetune_language_model
from components.training.import_language_model.component import import_language_model
from kfp_mindspore.errors import UserError
from tests.support.language.tiny_language_model import write_pairs, write_source


def create(kind: Any, path: Path) -> Any:
    return kind(uri=str(path), metadata={})


@pytest.mark.slow
@pytest.mark.mindspore
@pytest.mark.timeout(900)
def test_tuned_model_is_measured_on_held_out_answers(tmp_path: Path) -> None:
    base = create(dsl.Model, tmp_path / "base")
    import_language_model.python_func(model=base, given=create(dsl.Model, write_source(tmp_path / "source")))
    assert (base.metadata["kind"], base.metadata["architecture"]) == ("causal-lm", "qwen2")

    (tmp_path / "pairs").mkdir()
    write_pairs(tmp_path / "pairs" / "pairs.jsonl")
    names = {"tuned": dsl.Model, "adapter": dsl.Model, "held_out_examples": dsl.Dataset, "curves": dsl.HTML}
    outputs = {name: create(kind, tmp_path / name) for name, kind in {**names, "metrics": dsl.Metrics}.items()}
    result = finetune_language_model.python_func(
        model=base, dataset=create(dsl.Dataset, tmp_path / "pairs"), **outputs,
        epochs=6, learning_rate=0.05, length=64, batch_size=4, lora_rank=4,
    )  # fmt: skip
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    assert outputs["metrics"].metadata["perplexity"] == result.perplexity

    report, metrics = create(dsl.HTML, tmp_path / "report"), create(dsl.Metrics, tmp_path / "scores")
    common = {"base": base, "dataset": outputs["held_out_examples"], "metrics": metrics, "report": report}
    found = evaluate_language_model.python_func(
        model=outputs["tuned"], **common, min_improvement=0.9999, generated=2, max_tokens=4
    )
    assert found.passed is False
    assert found.value == pytest.approx(result.perplexity, rel=1e-3)
    assert metrics.metadata["base.perplexity"] == found.base_value > found.value
    assert "the lazy fox" in (tmp_path / "report").read_text()


def test_source_is_given_once(tmp_path: Path) -> None:
    model = create(dsl.Model, tmp_path / "model")
    for arguments in ({}, {"source": "smollm2", "given": model}):
        with pytest.raises(UserError, match="source: give either"):
            import_language_model.python_func(model=model, **arguments)


def test_wrong_option_is_named_before_model_is_read(tmp_path: Path) -> None:
    names = ("model", "tuned", "adapter", "held_out_examples", "metrics", "curves")
    artifacts = {name: create(dsl.Artifact, tmp_path / name) for name in names}
    with pytest.raises(UserError, match="lora_rank: must be"):
        finetune_language_model.python_func(**artifacts, data="pairs.jsonl", lora_rank=-1)
    assert not list(tmp_path.iterdir())
