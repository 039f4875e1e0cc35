"""Tokenize with subwords: trained and given tokenizers, the declaration, equality of training and server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.transform import Tokenize, build_pipeline
from kfp_mindspore.transform.declaration import build_steps, declare_step
from kfp_mindspore.transform.subwords import train_tokenizer

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "The lid is not flimsy at all.",
    "I would never buy it again!",
    "Größe passt, naïve Ärmel",
    "",
    "雨が降る ☃",
] * 20


def to_column(texts: list[str]) -> np.ndarray[Any, Any]:
    return np.array([text.encode() for text in texts], object)


def fit(**arguments: Any) -> Tokenize:
    return Tokenize(12, "subwords", max_values=300, **arguments).fit({"text": to_column(TEXTS)})


@pytest.mark.parametrize(("side", "lowercase"), [("right", True), ("left", True), ("right", None), ("right", False)])
def test_declaration_alone_gives_same_ids(side: str, lowercase: bool | None) -> None:
    step = fit(side=side, lowercase=lowercase)
    declared = json.loads(json.dumps(declare_step(step)))
    (built,) = build_steps([declared])
    assert isinstance(built, Tokenize)
    texts = to_column([*TEXTS[:5], "unseen WORDS \U0001f600", "x" * 500])
    ids = step.compute(texts)
    np.testing.assert_array_equal(built.compute(texts), ids)
    assert (ids.dtype, ids.shape) == (np.int32, (7, 12))
    assert ids.max() < built.size <= 300
    assert (ids[3] == built.padding).all()
    padded = (ids == built.padding).any(axis=1)
    assert (ids[padded][:, -1 if side == "right" else 0] == 0).all()
    assert built.count_unknown(texts)[0] == 0
    np.testing.assert_array_equal(np.concatenate([built.compute(texts[i : i + 1]) for i in range(7)]), ids)


def test_training_repeats_and_lower_case_joins_words() -> None:
    assert len({train_tokenizer(iter(TEXTS), 300, True) for _ in range(3)}) == 1
    texts = to_column(["THE LID", "the lid"])
    first, second = fit(lowercase=True).compute(texts)
    np.testing.assert_array_equal(first, second)
    first, second = fit().compute(texts)
    assert (first != second).any()


def save_word_piece(path: Path, *, padding: bool = True) -> None:
    special = ["[UNK]", "[CLS]", "[SEP]", *(["[PAD]"] if padding else [])]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.save(str(path))


def test_given_tokenizer_keeps_its_ids(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    save_word_piece(file)
    step = Tokenize(12, "subwords", tokenizer=str(file)).fit({"text": to_column(TEXTS)})
    library = tokenizers.Tokenizer.from_file(str(file))
    file.unlink()
    (built,) = build_steps([declare_step(step)])
    assert isinstance(built, Tokenize)
    assert (built.padding, built.unknown, built.size) == (3, 0, library.get_vocab_size())
    text = "The lid is flimsy"
    expected = library.encode(text).ids
    assert built.compute(to_column([text]))[0].tolist() == expected + [3] * (12 - len(expected))
    # The end token survives the cut.
    assert built.compute(to_column(["the lid " * 40]))[0].tolist()[::11] == [1, 2]
    assert built.count_unknown(to_column(["\U0001f600"]))[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "words", "tokenizer": "x.json"}, "tokenizer: needs unit subwords, got words"),
        ({"values": ["a"]}, "values: must be left out"),
        ({"max_values": 100}, "max_values: must be at least 258 with subwords, got 100"),
        ({"tokenizer": "missing.json"}, "missing.json: cannot be read"),
        ({"tokenizer": "table.csv"}, "table.csv: Tokenize: tokenizer: must be a tokenizer.json, got no JSON"),
        ({"tokenizer": "latin.json"}, "latin.json: must be a tokenizer.json .UTF-8., got another encoding"),
        ({"tokenizer": "other.json"}, "other.json: Tokenize: tokenizer: .* an object with `model`"),
        ({"tokenizer": "broken.json"}, "broken.json: Tokenize: tokenizer: not a tokenizer that tokenizers"),
        ({"tokenizer": "unpadded.json"}, "unpadded.json: Tokenize: tokenizer: has no token for padding"),
    ],
)
def test_wrong_tokenizer_is_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("text,label\na,b\n")
    Path("latin.json").write_bytes(b'{"model": "\xe4"}')
    Path("other.json").write_text("[1]")
    Path("broken.json").write_text('{"model": {"type": "Other"}, "padding": {"pad_id": 0}}')
    save_word_piece(Path("unpadded.json"), padding=False)
    with pytest.raises(UserError, match=message):
        Tokenize(**{"length": 4, "unit": "subwords", **arguments}).fit({"text": to_column(TEXTS)})


def test_missing_library_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = declare_step(fit())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"tokenizers is not installed") as error:
        build_steps([declared])
    assert "kfp-mindspore[tokenizers]" in error.value.hint
    with pytest.raises(MissingExtraError, match="tokenizers is not installed"):
        Tokenize(4, "subwords").fit({"text": to_column(TEXTS)})
    (words,) = build_steps([{"type": "Tokenize", "length": 4, "unit": "words", "values": ["a"]}])
    assert words.compute(to_column(["a"])).tolist() == [[2, 0, 0, 0]]


def test_dataset_has_subwords_of_training_split(tmp_path: Path) -> None:
    steps = [Tokenize(32, "subwords", lowercase=True, max_values=400, column="text")]
    dataset = load_dataset("reviews", tmp_path, limit=400, preprocessing=steps)
    assert dataset.report["unknown_tokens"]["text"] == {"validation": 0, "test": 0}
    samples = read_samples(dataset, "test")
    pipeline = build_pipeline(json.loads(json.dumps(dataset.preprocessing)))
    np.testing.assert_array_equal(pipeline.preprocess(samples.raw)["text"], samples.inputs["text"])
