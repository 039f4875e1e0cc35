"""A GGUF written from a model equals it when it is read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, pre_tokenizers, processors

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.export_gguf import write_gguf
from kfp_mindspore.lm.network import DecoderConfig, list_weights
from kfp_mindspore.lm.sources.gguf import SPLITS, read_gguf
from kfp_mindspore.lm.sources.model import SourceModel
from tests.support.numpy_decoder import write_tokenizer

pytestmark = pytest.mark.mindspore

TEXT = "The quick brown fox, 1234 jumps!\n\n  für 5 € 你好 <|im_start|>x<tool_call> I'll"
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"out_bias": True, "qkv_bias": True, "mlp_bias": True},
    "mistral": {"tied": True},
    "qwen2": {"qkv_bias": True, "tied": True},
    "qwen3": {"qk_norm": True, "head_size": 6},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    write_tokenizer(file)
    return Tokenizer.from_file(str(file))


def make_model(tokenizer: Tokenizer, kind: str, pre: str = "gpt-2", **changes: Any) -> SourceModel:
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    if expression := SPLITS[pre]:
        steps: list[Any] = [pre_tokenizers.Split(Regex(expression), "isolated")]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    elif pre == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre == "llama-bpe":
        name = "<|endoftext|>"
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, 0)])
    # More rows than tokens, as Qwen's embedding has.
    size = tokenizer.get_vocab_size() + 3
    config = DecoderConfig(*(size, 16, 2, 4, 2), **{"head_size": 4, "hidden": 24, "max_length": 64, **changes})
    random = np.random.default_rng(3)
    weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in list_weights(config).items()}
    generation = {"eos_token_id": [2, 0], "bos_token_id": 0, "pad_token_id": 0}
    return SourceModel(config, weights, tokenizer.to_str(), "{{ messages[0].content }}", generation, kind)


@pytest.mark.parametrize(("kind", "pre"), zip(VARIANTS, SPLITS, strict=True))
def test_model_is_equal_when_read_again(tokenizer: Tokenizer, tmp_path: Path, kind: str, pre: str) -> None:
    model = make_model(tokenizer, kind, pre, **VARIANTS[kind])
    write_gguf(model, tmp_path / "model.gguf", subject="model")
    found = read_gguf(tmp_path / "model.gguf")
    assert found.weights.keys() == model.weights.keys()
    for name, array in model.weights.items():
        np.testing.assert_array_equal(found.weights[name], array)
    assert dataclasses.replace(found.config, epsilon=model.config.epsilon) == model.config
    assert (found.template, found.generation) == (model.template, model.generation)
    texts = [Tokenizer.from_str(each.tokenizer) for each in (model, found)]
    first, second = (each.encode(TEXT).ids for each in texts)
    assert first == second
    assert texts[0].decode(first) == texts[1].decode(first)


def test_models_without_a_form_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = make_model(tokenizer, "llama")
    value = json.loads(model.tokenizer)
    cases = {
        "architecture: must be one of llama": dataclasses.replace(model, architecture="gpt2"),
        "activation: must be 'silu'": make_model(tokenizer, "llama", activation="gelu"),
        "pre_tokenizer: must be the one of gpt-2": {"pre_tokenizer": {"type": "Whitespace"}},
        "normalizer.type: not supported": {"normalizer": {"type": "Lowercase"}},
        "model.type: must be 'BPE'": {"model": {**value["model"], "type": "WordPiece"}},
    }
    for message, case in cases.items():
        if isinstance(case, dict):
            case = dataclasses.replace(model, tokenizer=json.dumps({**value, **case}))
        with pytest.raises(UserError, match=message):
            write_gguf(case, tmp_path / "model.gguf", subject="model")
    assert not list(tmp_path.iterdir())
