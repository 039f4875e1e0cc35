"""config.json of an export describes the network, or the export is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.bundle.export_huggingface import build_config, check_form
from kfp_mindspore.lm.network.decoder import DecoderConfig
from kfp_mindspore.lm.network.rope import RopeScaling
from kfp_mindspore.lm.sources.huggingface import parse_config

pytestmark = pytest.mark.mindspore

SIZES: dict[str, Any] = {
    "vocabulary_size": 30, "width": 16, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 4, "hidden": 24,
    "max_length": 64,
}  # fmt: skip
BIASES = {"qkv_bias": True, "out_bias": True}
YARN = RopeScaling("yarn", 4.0, 16, beta_fast=16.0, truncate=False, attention_factor=0.75)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("gpt2", {
            "kv_heads": 4, "rope_theta": 0, "norm": "layer", "activation": "gelu_tanh", "gated": False, "tied": True,
            **BIASES, "mlp_bias": True,
        }),
        ("llama", {**BIASES, "mlp_bias": True, "rope_scaling": RopeScaling("llama3", 8.0, 16)}),
        ("mistral", {"rope_scaling": RopeScaling("linear", 2.0), "rope_theta": 1e6}),
        ("mistral", {"window": 8, "windowed": (0, 1)}),
        ("qwen3", {"qk_norm": True, "window": 8, "windowed": (1,)}),
        ("phi3", {"window": 8, "windowed": (0, 1)}),
        ("gemma3_text", {
            **BIASES, "activation": "gelu_tanh", "qk_norm": True, "attention_scale": 168**-0.5, "norm_twice": True,
            "window": 8, "windowed": (0,), "window_theta": 1e3, "rope_scaling": RopeScaling("linear", 8.0),
        }),
        ("qwen2", {"qkv_bias": True, "rope_scaling": YARN}),
        ("qwen3", {"qk_norm": True, "head_size": 6, **BIASES}),
        ("granite", {"attention_scale": 0.0625, **BIASES, "epsilon": 2e-4}),
        ("olmo2", {"joint_qk_norm": True, "norm_after": True, **BIASES}),
        ("phi3", {"tied": True}),
        ("smollm3", {"layers": 2, "unrotated": (1,), **BIASES, "mlp_bias": True, "tied": True}),
    ],
)  # fmt: skip
def test_configuration_is_equal_when_read_again(kind: str, fields: dict[str, Any]) -> None:
    config = DecoderConfig(**{**SIZES, **fields})
    check_form(config, kind, "bundle")
    assert parse_config(build_config(config, kind), "config.json") == config


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama", {"qkv_bias": True}, "qkv_bias: llama of transformers has no form for True, only for False"),
        ("mistral", {"mlp_bias": True}, "mlp_bias: mistral of transformers has no form for True"),
        ("llama", {"layers": 2, "unrotated": (1,)}, "unrotated: llama of transformers has no form for"),
        ("llama", {"joint_qk_norm": True}, "joint_qk_norm: llama of transformers has no form for True"),
        ("llama", {"window": 8, "windowed": (0, 1)}, "window: llama of transformers has no form for 8, only for 0"),
        ("mistral", {"window": 8, "windowed": (1,)}, "windowed: mistral of transformers has no form for"),
        ("gemma3_text", {"tied": True}, "qk_norm: gemma3_text of transformers has no form for False"),
        ("llama", {"attention_scale": 0.5}, "attention_scale: llama of transformers has no form for 0.5"),
        (
            "phi3",
            {"rope_scaling": RopeScaling("factors", factors=(1.0, 1.0), rotated=1)},
            "rope_scaling: phi3 of transformers has no form for",
        ),
        ("qwen2", {}, "qkv_bias: qwen2 of transformers has no form for False"),
        ("llama", {"rope_scaling": RopeScaling("factors", factors=(1, 2))}, "rope_scaling: llama of transformers has"),
    ],
)
def test_network_without_a_form_is_refused(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_form(DecoderConfig(**{**SIZES, **fields}), kind, "bundle")
