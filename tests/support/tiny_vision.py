"""Tiny random vision models as Hugging Face directories, named as transformers names their tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

WIDTH, LAYERS, HEADS, HIDDEN, SIDE, PATCH, LENGTH, SPACE = 16, 2, 2, 24, 24, 8, 12, 10
QUERIES = 6
WORDS = ["a", "photo", "of", "cat", "dog", "red", "blue", "circle", "two", "small", "square", "circles", "above"]
_SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": HIDDEN,
}  # fmt: skip
_IMAGES = {**_SIZES, "image_size": SIDE, "patch_size": PATCH}


def write_clip(directory: Path, **changes: Any) -> Path:
    """Write a CLIPModel; `changes` replace fields of config.json."""
    return write_dual(directory, "clip", **changes)


def write_dual(directory: Path, kind: str, **changes: Any) -> Path:
    """Write a CLIPModel or SiglipModel; `changes` replace fields of config.json."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["<pad>", "<unk>", "<s>", "</s>"]
    vocabulary = {token: number for number, token in enumerate([*special[:3], *WORDS, "</s>"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(special)
    end = vocabulary["</s>"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", end)]
    )
    # Published tokenizers pad and truncate by themselves.
    tokenizer.enable_padding(length=7)
    tokenizer.enable_truncation(5)
    directory.mkdir(exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    text = {**_SIZES, "vocab_size": len(vocabulary), "max_position_embeddings": LENGTH, "eos_token_id": end}
    tensors: dict[str, Any] = {"text_model.embeddings.token_embedding.weight": (len(vocabulary), WIDTH)}
    tensors["text_model.embeddings.position_embedding.weight"] = (LENGTH, WIDTH)
    patches = (SIDE // PATCH) ** 2
    image = "vision_model.embeddings"
    tensors[f"{image}.patch_embedding.weight"] = (WIDTH, 3, PATCH, PATCH)
    norms = ["text_model.final_layer_norm", "vision_model.post_layernorm"]
    dense: dict[str, tuple[int, ...]] = {}
    for tower in ("text_model", "vision_model"):
        for layer in (f"{tower}.encoder.layers.{index}" for index in range(LAYERS)):
            dense |= {f"{layer}.self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
            dense |= {f"{layer}.mlp.fc1": (HIDDEN, WIDTH), f"{layer}.mlp.fc2": (WIDTH, HIDDEN)}
            norms += [f"{layer}.layer_norm1", f"{layer}.layer_norm2"]
    values: dict[str, Any] = {"model_type": kind, "text_config": text, "vision_config": _IMAGES}
    if kind == "clip":
        values |= {"architectures": ["CLIPModel"], "projection_dim": SPACE}
        tensors |= {f"{image}.class_embedding": (WIDTH,), f"{image}.position_embedding.weight": (patches + 1, WIDTH)}
        tensors |= {"text_projection.weight": (SPACE, WIDTH), "visual_projection.weight": (SPACE, WIDTH)}
        norms.append("vision_model.pre_layrnorm")
        scalars = {"logit_scale": np.float32(2.5)}
    else:
        values |= {"architectures": ["SiglipModel"]}
        values["text_config"] = {**text, "projection_size": WIDTH}
        tensors |= {f"{image}.patch_embedding.bias": (WIDTH,), f"{image}.position_embedding.weight": (patches, WIDTH)}
        head = "vision_model.head"
        tensors |= {f"{head}.probe": (1, 1, WIDTH), f"{head}.attention.in_proj_weight": (3 * WIDTH, WIDTH)}
        tensors[f"{head}.attention.in_proj_bias"] = (3 * WIDTH,)
        dense |= {"text_model.head": (WIDTH, WIDTH), f"{head}.attention.out_proj": (WIDTH, WIDTH)}
        dense |= {f"{head}.mlp.fc1": (HIDDEN, WIDTH), f"{head}.mlp.fc2": (WIDTH, HIDDEN)}
        norms.append(f"{head}.layernorm")
        scalars = {"logit_scale": np.ones(1, np.float32), "logit_bias": np.full(1, -2, np.float32)}
    _write(directory, {**values, **changes}, _fill(tensors, dense, norms) | scalars)
    processor = "CLIPImageProcessor" if kind == "clip" else "SiglipImageProcessor"
    size = {"shortest_edge": SIDE} if kind == "clip" else {"height": SIDE, "width": SIDE}
    crop = {"crop_size": SIDE} if kind == "clip" else {}
    (directory / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": processor, "size": size, **crop})
    )
    return directory


def write_vit(directory: Path, **changes: Any) -> Path:
    """Write a ViTForImageClassification; `changes` replace fields of config.json."""
    values: dict[str, Any] = {"model_type": "vit", "architectures": ["ViTForImageClassification"], **_IMAGES}
    values["id2label"] = {"0": "cat", "1": "dog", "2": "owl"}
    directory.mkdir(exist_ok=True)
    _write(directory, {**values, **changes}, _fill_vit({"classifier": (3, WIDTH)}, (SIDE // PATCH) ** 2 + 1))
    (directory / "preprocessor_config.json").write_text(json.dumps({"size": SIDE}))
    return directory


def write_yolos(directory: Path, processor: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """Write a YolosForObjectDetection with 6 queries; `changes` replace fields of config.json.

    Args:
        directory: Where to.
        processor: preprocessor_config.json's fields.
    """
    values: dict[str, Any] = {"model_type": "yolos", "architectures": ["YolosForObjectDetection"], **_IMAGES}
    values |= {"id2label": {"0": "cat", "1": "dog", "2": "owl"}, "image_size": [SIDE, 2 * SIDE]}
    values |= {"num_detection_tokens": QUERIES}
    count = 1 + 2 * (SIDE // PATCH) ** 2 + QUERIES
    dense = {f"class_labels_classifier.layers.{index}": (rows, WIDTH) for index, rows in enumerate((WIDTH, WIDTH, 4))}
    dense |= {f"bbox_predictor.layers.{index}": (rows, WIDTH) for index, rows in enumerate((WIDTH, WIDTH, 4))}
    tensors: dict[str, Any] = {"vit.embeddings.detection_tokens": (1, QUERIES, WIDTH)}
    tensors["vit.encoder.mid_position_embeddings"] = (LAYERS - 1, 1, count, WIDTH)
    directory.mkdir(exist_ok=True)
    _write(directory, {**values, **changes}, _fill_vit(dense, count, tensors))
    fields = {"size": {"shortest_edge": 32, "longest_edge": 64}, "image_processor_type": "YolosImageProcessor"}
    (directory / "preprocessor_config.json").write_text(json.dumps({**fields, **(processor or {})}))
    return directory


def _fill_vit(
    dense: dict[str, tuple[int, ...]], positions: int, tensors: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    root = "vit.embeddings"
    shapes: dict[str, Any] = {**tensors, f"{root}.cls_token": (1, 1, WIDTH)}
    shapes[f"{root}.position_embeddings"] = (1, positions, WIDTH)
    shapes |= {f"{root}.patch_embeddings.projection.weight": (WIDTH, 3, PATCH, PATCH)}
    shapes |= {f"{root}.patch_embeddings.projection.bias": (WIDTH,)}
    norms = ["vit.layernorm"]
    for layer in (f"vit.encoder.layer.{index}" for index in range(LAYERS)):
        dense |= {f"{layer}.attention.attention.{part}": (WIDTH, WIDTH) for part in ("query", "key", "value")}
        dense |= {f"{layer}.attention.output.dense": (WIDTH, WIDTH)}
        dense |= {f"{layer}.intermediate.dense": (HIDDEN, WIDTH), f"{layer}.output.dense": (WIDTH, HIDDEN)}
        norms += [f"{layer}.layernorm_before", f"{layer}.layernorm_after"]
    return _fill(shapes, dense, norms)


def _fill(tensors: dict[str, Any], dense: dict[str, tuple[int, ...]], norms: list[str]) -> dict[str, Any]:
    random = np.random.default_rng(3)
    shapes = dict(tensors)
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}
    return {
        name: (random.normal(0, shape[-1] ** -0.5, shape) + name.endswith("norm.weight")).astype(np.float32)
        for name, shape in shapes.items()
    }


def _write(directory: Path, values: dict[str, Any], tensors: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    (directory / "config.json").write_text(json.dumps(values))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, directory / "model.safetensors")
