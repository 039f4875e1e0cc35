"""An untrained language model: its tokenizer knows the training examples only, and its bundle is trained further."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.lm.bundle.causal import read_model
from kfp_mindspore.lm.bundle.creation import build_decoder
from kfp_mindspore.lm.options import NetworkOptions
from kfp_mindspore.lm.text.examples import hold_out, open_examples, read_examples

pytestmark = pytest.mark.mindspore

OPTIONS = NetworkOptions(vocabulary=300, width=16, layers=1, heads=2, max_length=64)


def test_tokenizer_is_trained_on_training_examples_only() -> None:
    records = [{"text": f"the lazy dog {number}"} for number in range(50)]
    training, held = hold_out(records, OPTIONS.held_out)
    tokenizer = build_decoder(records, OPTIONS).tokenizer
    for part, is_equal in ((held, True), (training, False)):
        changed = [{**record, "completion": "zebra " * 99} if record in part else record for record in records]
        assert (build_decoder(changed, OPTIONS).tokenizer == tokenizer) is is_equal


def test_created_bundle_has_given_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, bundle = tmp_path / "book.txt", tmp_path / "bundle"
    file.write_text("".join(f"The dog jumps {number} times.\n\n" for number in range(60)))
    sizes = ["--vocabulary", "300", "--width", "16", "--layers", "1", "--heads", "2", "--max-length", "64"]
    assert run(["lm", "create", str(file), "-o", str(bundle), "--json", *sizes]) == 0
    created = json.loads(capsys.readouterr().out)
    model = read_model(bundle)
    assert created["vocabulary"] == model.config.vocabulary_size <= 300
    assert created["weights"] == sum(array.size for array in model.weights.values())
    assert (model.config.width, model.config.layers, model.config.max_length) == (16, 1, 64)
    assert model.generation == {"bos_token_id": 0, "eos_token_id": 1}


def test_text_file_has_example_per_line(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("a b\n\nc\n")
    with open_examples(str(tmp_path / "book.txt")) as file:
        assert read_examples(file) == [{"text": "a b"}, {"text": "c"}]


def test_width_fits_heads() -> None:
    with pytest.raises(ValidationError, match="width: must be an even multiple of 4 heads, got 20"):
        NetworkOptions(width=20)
