"""BERT directories become bundles whose embeddings equal a forward pass in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor, ops
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.lm.embedding import EncoderRunner, TextEmbedder, load
from kfp_mindspore.lm.network.encoder import Encoder, EncoderConfig, list_encoder_weights
from kfp_mindspore.lm.search import search_answers
from kfp_mindspore.lm.sources.bert import read_bert
from tests.support.language.tiny_bert import LONGEST, WIDTH, compute_float64, write_bert, write_questions

pytestmark = pytest.mark.mindspore


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert") / "source"
    write_bert(directory)
    return directory


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    path = source.parent / "bundle"
    assert run(["lm", "import", str(source), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def runner(bundle: Path) -> EncoderRunner:
    return load(bundle)


def test_embeddings_equal_float64_forward_pass(source: Path, bundle: Path) -> None:
    tensors, tokenizer = load_file(source / "model.safetensors"), Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    texts = ["the quick brown fox", "What is the capital of France?", "paris", "a" * 5, "lazy dogs over the fox " * 12]
    expected = [compute_float64(tensors, tokenizer.encode(text).ids[:LONGEST]) for text in texts[:4]]
    expected.append(compute_float64(tensors, [*tokenizer.encode(texts[4]).ids[: LONGEST - 1], 3]))
    found = TextEmbedder.open(bundle).embed(texts)
    assert found.shape == (5, WIDTH)
    np.testing.assert_allclose(found, expected, atol=2e-6)


def test_signature_and_verified_texts(bundle: Path, runner: EncoderRunner) -> None:
    signature = ModelBundle.open(bundle).signature
    assert signature.metadata == {"kind": "embedding", "architecture": "bert", "max_length": str(LONGEST)}
    assert signature.verified["max_abs_diff"] <= 1e-5
    prompts = np.load(bundle / "prompts.npz")
    for number in range(2):
        np.testing.assert_allclose(
            runner.compute([prompts[f"ids.{number}"]])[0], prompts[f"embedding.{number}"], atol=1e-6
        )


def test_token_types_and_cls_pooling(tmp_path: Path) -> None:
    tensors = write_bert(tmp_path, pooling="cls")
    model = read_bert(tmp_path)
    ids, types = np.array([[2, 8, 9, 3, 10, 3]], np.int32), np.array([[0, 0, 0, 0, 1, 1]], np.int32)
    inputs = [Tensor(array) for array in (ids, types, np.ones((1, 6), np.float32))]
    weights = [Tensor(model.weights[name]) for name in list_encoder_weights(model.config)]
    found = Encoder(model.config).compile_and_run(*inputs, *weights).asnumpy()[0]
    np.testing.assert_allclose(found, compute_float64(tensors, ids[0], types[0], pooling="cls"), atol=2e-6)


def test_erf_equals_float64() -> None:
    values = np.linspace(-5, 5, 2001).astype(np.float32)
    found = ops.erf(Tensor(values)).asnumpy()
    assert np.abs(found - [math.erf(value) for value in values.tolist()]).max() < 2e-7


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (4, 1), (5, 5), (8, 8), (12, 8), (17, 17), (40, 32)])
def test_batches_are_at_most_doubled_by_padding(runner: EncoderRunner, count: int, expected: int) -> None:
    assert runner.fit_batch(count) == expected


def test_masked_lm_head_is_ignored(tmp_path: Path) -> None:
    tensors = write_bert(tmp_path, prefix="bert.", architectures=["BertForMaskedLM"])
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "cls.predictions.bias": np.zeros(4, np.float32)}, file)
    found = read_bert(tmp_path).weights["embedding"]
    np.testing.assert_array_equal(found, tensors["embeddings.word_embeddings.weight"])


def test_directory_without_modules_has_mean_pooling(tmp_path: Path) -> None:
    write_bert(tmp_path)
    (tmp_path / "modules.json").unlink()
    config = read_bert(tmp_path).config
    assert (config.pooling, config.normalised, config.max_length) == ("mean", False, config.positions)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["BertForTokenClassification"]}, "architectures: must be one of BertModel, BertForM"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map: the author's code is never run"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: must be 'absolute'"),
        ({"hidden_act": "gelu_new"}, "hidden_act: must be one of gelu, relu, got 'gelu_new'"),
        ({"num_attention_heads": 3}, "num_attention_heads: must divide hidden_size 16, got 3"),
        ({"hidden_size": None}, "hidden_size: must be a whole number >= 1, got None"),
        ({"max_position_embeddings": 60}, "max_length: must be at most 60 positions, got 64"),
    ],
)
def test_unsupported_configurations_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_bert(tmp_path, **change)
    with pytest.raises(UserError, match=message):
        read_bert(tmp_path)


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "2"}], "Dense: not supp"),
        ("modules.json", [[]], "must be a list of modules"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "must be mean_tokens or cls_token, got max_token"),
        (
            "sentence_bert_config.json",
            {"max_seq_length": "64"},
            "max_seq_length: must be a whole number >= 1",
        ),
        ("1_Pooling/config.json", {}, "must be mean_tokens or cls_token, got none"),
    ],
)
def test_unsupported_poolings_are_refused(tmp_path: Path, file: str, value: Any, message: str) -> None:
    write_bert(tmp_path)
    (tmp_path / file).write_text(json.dumps(value))
    with pytest.raises(UserError, match=message):
        read_bert(tmp_path)


def test_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    tensors = write_bert(tmp_path)
    del tensors["encoder.layer.1.attention.self.key.weight"]
    tensors["encoder.layer.0.output.dense.bias"] = np.zeros(3, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValidationError, match=r"key\.weight: missing") as caught:
        read_bert(tmp_path)
    assert "encoder.layer.0.output.dense.bias: shape must be (16,), got (3,)" in str(caught.value)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match="pooling: must be one of mean, cls, got 'max'"):
        EncoderConfig(10, 8, 1, 2, 16, 32, 2, 32, pooling="max")


def test_tfidf_ranks_answers_that_share_words_first() -> None:
    pairs = [
        ("where do lions live", "lions live in Africa"),
        ("where do lions live", "in a zoo"),
        ("which letter is the ninth", "I"),
        ("what do cows eat", "grass"),
        *((f"what is {number}", "number " * number) for number in range(3, 8)),
    ]
    records = [{"prompt": prompt, "completion": completion} for prompt, completion in pairs]
    scores, found = search_answers(records, None, subject="pairs")
    # Without a common word all other answers precede the right one.
    assert len(found) == 8
    assert scores == {"recall_at_5": pytest.approx(1 / 8), "mrr": pytest.approx((1 + 7 / 9) / 8)}
    assert found[0] == ("where do lions live", "lions live in Africa", "lions live in Africa")


def test_gate_compares_search_with_tfidf(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, report = str(write_questions(tmp_path / "pairs.jsonl")), tmp_path / "report.html"
    assert run(["lm", "evaluate", str(bundle), data]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("40 of 40 texts\nrecall_at_5: model ")
    command = ["lm", "evaluate", str(bundle), data, "--metric", "mrr", "--json"]
    assert run([*command, "--min-improvement", "0.2", "--report", str(report), "--generated", "2"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["model"]["mrr"] == pytest.approx(result["base"]["mrr"] + result["improvement"])
    assert result["examples"] == 20
    assert "gate passed" in report.read_text()
    assert run([*command, "--base", str(bundle), "--min-improvement", "0.01"]) == 3
    assert json.loads(capsys.readouterr().out)["improvement"] == 0


def test_wrong_search_metric_and_pair_are_named(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "pairs.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "c"}\n')
    assert run(["lm", "evaluate", str(bundle), str(data), "--metric", "perplexity"]) == 2
    assert "metric: must be one of recall_at_5, mrr for the kind embedding, got perplexity" in capsys.readouterr().err
    assert run(["lm", "evaluate", str(bundle), str(data), "--metric", "mrr"]) == 2
    assert "example 2 is invalid: completion: must be a text, got nothing" in capsys.readouterr().err
