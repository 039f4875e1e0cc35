"""A causal language model cut at a layer, for two servers.

The first stage has the embedding, the layers before the cut, tokenizer and chat template, and serves clients. The
second one has the other layers and the head; it computes on the first one's hidden states. See
`mindsporeserver.language.next_stage`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.bundle import (
    FIRST_STAGE_KIND,
    GENERATION_FILE,
    OUTPUT,
    PROMPTS_FILE,
    SECOND_STAGE_KIND,
    WEIGHTS_FILE,
    ModelBundle,
)
from kfp_mindspore.lm.bundle.causal import read_model
from kfp_mindspore.lm.network.decoder import DecoderConfig, list_weights
from kfp_mindspore.lm.serving.network_files import Array, write_network
from kfp_mindspore.lm.serving.runner import CausalRunner
from kfp_mindspore.lm.sources.model import SourceModel
from kfp_mindspore.lm.text.template import TEMPLATE_FILE
from kfp_mindspore.outputs import check_directory, check_replaceable

FIRST, SECOND = "first", "second"


def split_model(bundle: Path, layer: int, output: Path) -> float:
    """Write a bundle's two stages.

    Args:
        bundle: A `causal-lm` bundle.
        layer: Layers in the first stage.
        output: Directory for the bundles `first` and `second`; both are replaced when they exist.

    Returns:
        The largest difference from the bundle's verified logits, relative to the largest logit.

    Raises:
        UserError: It is no `causal-lm` bundle, or a stage would have no layer.
        KfpMindSporeError: The stages' logits differ from the verified ones by more than 1e-5 of the largest.
    """
    check_directory(output, [bundle])
    for name in (FIRST, SECOND):
        check_replaceable(output / name, OUTPUT, [bundle])
    model = read_model(bundle)
    if not 1 <= layer < model.config.layers:
        most = model.config.layers - 1
        raise UserError(f"--layer: must be from 1 to {most}, the model has {most + 1} layers, got {layer}")
    stages = split_weights(model, layer)
    with np.load(bundle / PROMPTS_FILE) as prompts:
        arrays = dict(prompts)
    pairs = _compute_pairs(stages, arrays)
    texts = {GENERATION_FILE: json.dumps(dict(model.generation), indent=2)}
    texts |= {TEMPLATE_FILE: model.template} if model.template else {}
    origin = f"{ModelBundle.open(bundle, verify=False).signature.files[WEIGHTS_FILE]['sha256']}:{layer}"
    for name, kind, stage in zip((FIRST, SECOND), (FIRST_STAGE_KIND, SECOND_STAGE_KIND), stages, strict=True):
        difference = write_network(
            output / name, stage, kind, arrays, pairs, texts, {"split": origin}, subject=str(bundle)
        )
    return difference


def split_weights(model: SourceModel, layer: int) -> tuple[SourceModel, SourceModel]:
    """Return a model's stages; a tied head is copied to the second one.

    Args:
        model: The model.
        layer: Layers in the first stage.
    """
    config = model.config
    numbers = {"unrotated": config.unrotated, "windowed": config.windowed}
    below: dict[str, Any] = {name: tuple(each for each in numbers[name] if each < layer) for name in numbers}
    above: dict[str, Any] = {name: tuple(each - layer for each in numbers[name] if each >= layer) for name in numbers}
    first = dataclasses.replace(config, layers=layer, predicts=False, **below)
    second = dataclasses.replace(config, layers=config.layers - layer, embeds=False, tied=False, **above)
    return _take_weights(model, first, 0), _take_weights(model, second, layer)


def _take_weights(model: SourceModel, config: DecoderConfig, start: int) -> SourceModel:
    weights = {}
    for name in list_weights(config):
        kind, _, rest = name.partition(".")
        if kind == "layers":
            index, _, rest = rest.partition(".")
            weights[name] = model.weights[f"layers.{int(index) + start}.{rest}"]
        else:
            weights[name] = model.weights["embedding" if name == "head" and model.config.tied else name]
    return dataclasses.replace(model, config=config, weights=weights)


def _compute_pairs(stages: tuple[SourceModel, SourceModel], prompts: Mapping[str, Array]) -> list[tuple[Array, Array]]:
    """Return the stages' logits and the verified ones by prompt."""
    length = min(256, stages[0].config.max_length)
    first, second = (CausalRunner(stage.config, stage.weights, slots=1, max_length=length) for stage in stages)
    names = [name for name in prompts if name.startswith("ids.")]
    return [
        (
            second.prefill(0, first.prefill(0, prompts[name], 0, all_positions=True), 0),
            prompts[name.replace("ids.", "logits.")],
        )
        for name in names
    ]
