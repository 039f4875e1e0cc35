"""Scaled rotary positions beside the published formulas, written down here once more."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.lm.network.decoder import DecoderConfig, compute_rotations
from kfp_mindspore.lm.network.rope import RopeScaling
from kfp_mindspore.lm.sources.huggingface import parse_config

pytestmark = pytest.mark.mindspore

LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
# By theta, head size and longest text: Llama 3.2, Vicuna 16k, Qwen2.5 with its documented yarn, a DeepSeek.
PUBLISHED: dict[str, tuple[float, int, int, dict[str, Any]]] = {
    "llama3": (500000.0, 64, 131072, LLAMA3),
    "llama3-8": (500000.0, 128, 131072, {**LLAMA3, "factor": 8.0}),
    "linear": (10000.0, 128, 16384, {"type": "linear", "factor": 4.0}),
    "yarn": (1000000.0, 128, 131072, YARN),
    "yarn-options": (10000.0, 64, 65536, {**YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.8}),
    "yarn-untruncated": (10000.0, 64, 65536, {**YARN, "truncate": False}),
    "yarn-mscale": (10000.0, 64, 65536, {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707}),
    "yarn-own-length": (10000.0, 64, 4096, {"rope_type": "yarn", "factor": 2.0}),
}


def compute_angle(pair: int, theta: float, size: int, length: int, scaling: dict[str, Any]) -> tuple[float, float]:
    """Return a pair's angle per position, and the factor of its cosine and sine.

    llama3: github.com/meta-llama/llama-models, apply_scaling. linear: kaiokendev's position interpolation. yarn: arXiv
    2309.00071, sections 3.2 to 3.4, with the whole dimensions of its authors' code.
    """
    angle, factor = theta ** (-2 * pair / size), scaling["factor"]
    kind, original = scaling.get("rope_type", scaling.get("type")), scaling.get("original_max_position_embeddings")
    wavelength = 2 * math.pi / angle
    if kind == "linear":
        return angle / factor, 1
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if wavelength < original / high:
            return angle, 1
        if wavelength > original / low:
            return angle / factor, 1
        smooth = (original / wavelength - low) / (high - low)
        return (1 - smooth) * angle / factor + smooth * angle, 1
    original = original or length
    bounds = [
        size * math.log(original / (2 * math.pi * rotations)) / (2 * math.log(theta))
        for rotations in (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1))
    ]
    if scaling.get("truncate", True):
        bounds = [math.floor(bounds[0]), math.ceil(bounds[1])]
    first, last = max(bounds[0], 0), min(bounds[1], size - 1)
    interpolated = min(max((pair - first) / (last - first), 0), 1)
    magnitude = scaling.get("attention_factor", 0.1 * math.log(factor) + 1)
    if "mscale" in scaling:
        magnitude = (0.1 * scaling["mscale"] * math.log(factor) + 1) / (
            0.1 * scaling["mscale_all_dim"] * math.log(factor) + 1
        )
    return interpolated * angle / factor + (1 - interpolated) * angle, magnitude


def parse(**values: Any) -> DecoderConfig:
    small = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 128, "num_attention_heads": 2}
    return parse_config({**small, **values}, "config.json")


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rotations_equal_published_formula(name: str, key: str) -> None:
    theta, size, length, scaling = PUBLISHED[name]
    own = {"rope_theta": theta} if key == "rope_scaling" else {}
    value = scaling if key == "rope_scaling" else {**scaling, "rope_theta": theta}
    config = parse(head_dim=size, max_position_embeddings=length, **{key: value}, **own)
    # The first positions and the last ones.
    config = dataclasses.replace(config, max_length=min(length, 9000))
    found = compute_rotations(config)
    for pair in range(size // 2):
        angle, magnitude = compute_angle(pair, theta, size, length, scaling)
        angles = angle * np.arange(config.max_length)
        for table, expected in zip(found, (np.cos(angles), np.sin(angles)), strict=True):
            np.testing.assert_allclose(table[:, pair], magnitude * expected, rtol=0, atol=2e-7)


def test_configuration_is_equal_after_json() -> None:
    for scaling in (RopeScaling("llama3", 8.0, 8192), RopeScaling("factors", factors=(1.0, 2.5)), None):
        config = DecoderConfig(30, 16, 1, 4, 2, 4, 24, 64, rope_scaling=scaling)
        assert DecoderConfig(**json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.rope_type: missing, must be one of default, linear, llama3"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: must be one of .*, got 'dynamic'"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, r"rope_type: must be one of .*, got \['linear'\]"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "type: must equal rope_type 'linea"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: missing"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor: must be a number >= 1, got '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope_scaling.factor: must be a number >= 1, got 0.5"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 9}}, "rope_scaling.beta_fast: not known, got 9"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "rope_scaling.high_freq_factor: must be > low_freq_f"),
        ({"rope_scaling": {**YARN, "beta_fast": 1}}, "rope_scaling.beta_fast: must be > beta_slow 1.0"),
        ({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 1e4}, "rope_parameters.rope_theta: must equal rope_th"),
        ({"rope_parameters": LLAMA3, "rope_scaling": YARN}, "rope_scaling: must equal rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor: must be 1.0"),
        ({"rope_theta": 1.0, "rope_scaling": YARN}, "rope_theta: must be > 1 with yarn, got 1.0"),
    ],
)
def test_scalings_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(**change)


def test_scaling_must_fit_the_decoder() -> None:
    sizes = (30, 16, 1, 4, 2, 4, 24, 64)
    with pytest.raises(ValidationError, match=r"rope_scaling.factors: must be 2 numbers, got 3"):
        DecoderConfig(*sizes, rope_scaling=RopeScaling("factors", factors=(1, 2, 3)))
    with pytest.raises(ValidationError, match="rope_scaling: must be None with learned positions"):
        DecoderConfig(*sizes, rope_theta=0, rope_scaling=RopeScaling("linear", 2.0))
    with pytest.raises(ValidationError, match="alpha: not a field"):
        RopeScaling.build({"kind": "linear", "alpha": 1})
