"""CLIP, SigLIP, ViT, DINOv2 and YOLOS in Hugging Face directories: keys and tensors by family (transformers 4.57)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.lm.sources.families import HINT
from kfp_mindspore.lm.sources.fields import read_keys, refuse
from kfp_mindspore.lm.sources.huggingface import open_weights, read_json, read_tokenizer
from kfp_mindspore.lm.sources.model import read_tensors, refuse_architecture
from kfp_mindspore.lm.text.template import read_special_tokens
from kfp_mindspore.vision.network import (
    BlockConfig,
    DetectorConfig,
    ImageConfig,
    TextConfig,
    Weights,
    list_detector_weights,
    list_image_weights,
    list_text_weights,
)
from kfp_mindspore.vision.processor import parse_detector_processor, parse_processor
from kfp_mindspore.vision.sources.keys import (
    ACTIVATIONS,
    DETECTOR_TYPE,
    DUAL_TYPES,
    IMAGE_TYPES,
    KEYS,
    PROCESSORS,
    TOWER_KEYS,
)
from kfp_mindspore.vision.sources.tensors import TensorReader, list_detector_parts, list_image_parts, list_text_parts
from kfp_mindspore.vision.text_towers import EncoderTextConfig


@dataclass(frozen=True)
class SourceImages:
    """A published image tower or classifier.

    Args:
        config: The network's.
        weights: float32 arrays by the network's names.
        steps: The preprocessing steps' declarations.
        architecture: `model_type`.
        labels: Class names by index; empty for embeddings.
    """

    config: ImageConfig
    weights: Weights
    steps: Sequence[Mapping[str, Any]]
    architecture: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceTexts:
    """A published dual encoder's text tower.

    Args:
        config: The network's.
        weights: float32 arrays by the network's names.
        tokenizer: tokenizer.json.
        pad_id: The token after a text's last one.
        scale: The factor of an image's and a text's cosine similarity.
        bias: Added to that product; None for a model whose scores are a softmax over texts.
    """

    config: TextConfig | EncoderTextConfig
    weights: Weights
    tokenizer: str
    pad_id: int
    scale: float
    bias: float | None


@dataclass(frozen=True)
class SourceDetector:
    """A detector as it is published.

    Args:
        config: The network's.
        weights: By `list_detector_weights`' names, positions for the config's images.
        steps: The preprocessing's declarations.
        labels: Class names.
    """

    config: DetectorConfig
    weights: Weights
    steps: list[dict[str, Any]]
    labels: tuple[str, ...]


def read_images(directory: Path) -> SourceImages:
    """Read a ViT classifier, a DINOv2, or a dual encoder's image tower.

    Args:
        directory: As `save_pretrained` writes it, with preprocessor_config.json.

    Raises:
        NotFoundError: A file is missing.
        UserError: A model, key or processor is not supported, or a file is damaged; the message names the key.
    """
    values, kind, subject = read_config(directory)
    steps, sides = _read_processor(directory, kind)
    config, source_side, labels = parse_images(values, sides, subject)
    shapes, parts = list_image_weights(config), list_image_parts(config, kind, has_labels=bool(labels))
    if kind in DUAL_TYPES:
        # What its other tower has to be refused for is found before weights are read, too.
        parse_texts(values, subject)
    reader = TensorReader(open_weights(directory))
    shapes["positions"] = (config.has_class + (source_side // config.patch) ** 2, config.blocks.width)
    scales = [name for name in parts if name.endswith(".scale")]
    wanted = shapes | dict.fromkeys(scales, (config.blocks.width,))
    ignored: tuple[str, ...] = (".position_ids", "mask_token", "logit_scale", "logit_bias")
    if kind in DUAL_TYPES:
        ignored += tuple(name for name in reader.entries if name.startswith("text_"))
    found = read_tensors(wanted, parts, reader, subject=str(directory), ignored=ignored)
    for name in scales:
        # A layer's scale is part of its last matrix.
        part, scale = name.removesuffix(".scale"), found.pop(name)
        found[f"{part}.weight"] = found[f"{part}.weight"] * scale[:, None]
        found[f"{part}.bias"] = found[f"{part}.bias"] * scale
    found["positions"] = interpolate_positions(found["positions"], config)
    return SourceImages(config, found, steps, kind, labels)


def read_texts(directory: Path) -> SourceTexts:
    """Read a dual encoder's text tower, tokenizer and scale.

    Args:
        directory: As for `read_images`.

    Raises:
        UserError: As `read_images`.
    """
    values, kind, subject = read_config(directory)
    config = parse_texts(values, subject)
    shapes, parts = list_text_weights(config), list_text_parts(config, kind)
    tokenizer = read_tokenizer(directory)
    reader = TensorReader(open_weights(directory))
    bias = ("logit_bias",) if kind == "siglip" else ()
    singles = dict.fromkeys(("logit_scale", *bias), (1,))
    ignored = (".position_ids", *(name for name in reader.entries if name.startswith(("vision_", "visual_"))))
    found = read_tensors(
        shapes | singles, parts | {name: (name,) for name in singles}, reader, subject=str(directory), ignored=ignored
    )
    scale = float(np.exp(found.pop("logit_scale")[0]))
    shift = float(found.pop("logit_bias")[0]) if bias else None
    pad_id = _read_pad(directory, tokenizer, config.vocabulary_size)
    return SourceTexts(config, found, tokenizer, pad_id, scale, shift)


def read_detector(directory: Path) -> SourceDetector:
    """Read a YOLOS detector.

    Args:
        directory: As for `read_images`.

    Raises:
        UserError: As `read_images`.
    """
    values, _, subject = read_config(directory)
    file = directory / "preprocessor_config.json"
    steps, sides = parse_detector_processor(read_json(file), str(file))
    config, source = parse_detector(values, sides, subject)
    shapes, parts = list_detector_weights(config), list_detector_parts(config)
    stored = dataclasses.replace(config, size=source)
    tables = ("positions", "mid_positions") if config.mid_positions else ("positions",)
    shapes |= {name: list_detector_weights(stored)[name] for name in tables}
    ignored = () if config.mid_positions else ("mid_position_embeddings",)
    found = read_tensors(shapes, parts, TensorReader(open_weights(directory)), subject=str(directory), ignored=ignored)
    for name in tables:
        found[name] = resize_positions(found[name], stored, config)
    return SourceDetector(config, found, steps, _read_labels(values, subject, unique=False))


def parse_detector(
    values: Mapping[str, Any], sides: tuple[int, int], subject: str
) -> tuple[DetectorConfig, tuple[int, int]]:
    """Return the detector, and the height and width of the images that its positions are for.

    Args:
        values: config.json's content.
        sides: The canvas' height and width.
        subject: The file's path, for messages.

    Raises:
        UserError: A key is not supported.
    """
    found = read_keys(values, KEYS[DETECTOR_TYPE], subject, hint=HINT)
    (height, width), patch, layers = found["image_size"], found["patch_size"], found["num_hidden_layers"]
    has_mid = found["use_mid_position_embeddings"] and layers > 1
    errors = []
    if min(height, width, *sides) < patch:
        errors.append(f"patch_size: must be at most {min(height, width, *sides)}, an image's side, got {patch}")
    elif has_mid and height * width // patch**2 != (height // patch) * (width // patch):
        errors.append(f"image_size: must be multiples of patch_size {patch} with mid positions, got {height} x {width}")
    refuse(errors, subject)
    config = DetectorConfig(
        *(_build_blocks(found, subject, ""), sides, patch, found["num_detection_tokens"]),
        len(_read_labels(values, subject, unique=False)),
        has_mid,
    )
    return config, (height, width)


def parse_images(
    values: Mapping[str, Any], sides: tuple[int, int], subject: str
) -> tuple[ImageConfig, int, tuple[str, ...]]:
    """Return the image network, the side of the images that its positions are for, and its class names.

    Args:
        values: config.json's content.
        sides: The processor's height and width.
        subject: The file's path, for messages.

    Raises:
        UserError: A key is not supported.
    """
    kind = values["model_type"]
    found, prefix = read_keys(values, KEYS[kind], subject, hint=HINT), ""
    projection = found.get("projection_dim", 0)
    if kind in DUAL_TYPES:
        found, prefix = _read_tower(found, kind, "vision_config", subject)
    if kind == "dinov2":
        hidden = found["hidden_size"] * found["mlp_ratio"]
        found["intermediate_size"] = (int(hidden * 2 / 3) + 7) // 8 * 8 if found["use_swiglu_ffn"] else hidden
    side, patch = found["image_size"], found["patch_size"]
    errors = [f"{prefix}patch_size: must be at most image_size {side}, got {patch}"] if patch > side else []
    if kind != "dinov2" and sides != (side, side):
        errors.append(f"{prefix}image_size: must be the processor's size {sides[0]} x {sides[1]}, got {side}")
    if min(sides) < patch:
        errors.append(f"{prefix}patch_size: must be at most the processor's size {min(sides)}, got {patch}")
    refuse(errors, subject)
    blocks = _build_blocks(found, subject, prefix)
    if kind == "clip":
        return (
            ImageConfig(blocks, sides, patch, patch_bias=False, pre_norm=True, outputs=projection, normalised=True),
            side,
            (),
        )
    if kind == "siglip":
        return ImageConfig(blocks, sides, patch, has_class=False, pooling="attention", normalised=True), side, ()
    if kind == "dinov2" and "Dinov2ForImageClassification" not in (values.get("architectures") or ()):
        return ImageConfig(blocks, sides, patch), side, ()
    labels = _read_labels(values, subject)
    pooling = "class_mean" if kind == "dinov2" else "class"
    return ImageConfig(blocks, sides, patch, pooling=pooling, outputs=len(labels), output_bias=True), side, labels


def parse_texts(values: Mapping[str, Any], subject: str) -> TextConfig:
    """Return the text tower's configuration.

    Args:
        values: A dual encoder's config.json.
        subject: The file's path, for messages.

    Raises:
        UserError: A key is not supported.
    """
    kind = values["model_type"]
    top = read_keys(values, KEYS[kind], subject, hint=HINT)
    found, prefix = _read_tower(top, kind, "text_config", subject)
    end_id, outputs = None, top.get("projection_dim", 0)
    if kind == "clip":
        # Files with 2 are older than the key: the end token has the highest ID.
        end_id = -1 if found["eos_token_id"] == 2 else found["eos_token_id"]
    else:
        outputs = found["projection_size"]
    blocks = _build_blocks(found, subject, prefix)
    return TextConfig(
        blocks, found["vocab_size"], found["max_position_embeddings"], end_id, outputs, output_bias=kind == "siglip"
    )


def interpolate_positions(positions: NDArray[np.float32], config: ImageConfig) -> NDArray[np.float32]:
    """Return positions for the images' grid, bicubic as torch computes it (a = -0.75, no antialiasing).

    Args:
        positions: For a square grid, (has_class + side², width).
        config: The network's.
    """
    first, grid = positions[: config.has_class], positions[config.has_class :]
    side = round(len(grid) ** 0.5)
    return np.concatenate([first, resize_grid(grid, (side, side), config.grid)])


def resize_grid(
    positions: NDArray[np.float32], source: tuple[int, int], target: tuple[int, int]
) -> NDArray[np.float32]:
    """Return positions (…, rows · columns, width) for another grid, see `interpolate_positions`.

    Args:
        positions: For the source's grid.
        source: Its rows and columns.
        target: The result's rows and columns.
    """
    if source == target:
        return positions
    rows, columns = map(_build_cubic, source, target)
    grid = positions.reshape(*positions.shape[:-2], *source, -1).astype(np.float64)
    resized: NDArray[np.float64] = np.einsum("ri,cj,...ijw->...rcw", rows, columns, grid)
    return resized.reshape(*positions.shape[:-2], -1, positions.shape[-1]).astype(np.float32)


def resize_positions(
    positions: NDArray[np.float32], source: DetectorConfig, target: DetectorConfig
) -> NDArray[np.float32]:
    """Return a detector's positions (…, tokens, width) for images of another size, see `interpolate_positions`.

    Args:
        positions: For the source's images.
        source: The detector that has them.
        target: The same one for other images.
    """
    first, grid, last = np.split(positions, (1, source.tokens - source.queries), -2)
    return np.concatenate([first, resize_grid(grid, source.grid, target.grid), last], -2)


def _build_cubic(source: int, target: int) -> NDArray[np.float64]:
    matrix = np.zeros((target, source))
    places = (np.arange(target) + 0.5) * source / target - 0.5
    for row, place in enumerate(places):
        start = int(np.floor(place))
        for index in range(start - 1, start + 3):
            far = abs(place - index)
            weight = (1.25 * far - 2.25) * far * far + 1 if far <= 1 else ((-0.75 * far + 3.75) * far - 6) * far + 3
            matrix[row, min(max(index, 0), source - 1)] += weight
    return matrix


def read_config(directory: Path) -> tuple[dict[str, Any], str, str]:
    """Return config.json's content, its `model_type`, and its path for messages.

    Args:
        directory: The Hugging Face directory.

    Raises:
        UserError: It is missing, damaged, or of a model that is not supported.
    """
    values = read_json(directory / "config.json")
    subject = str(directory / "config.json")
    refuse_architecture(subject, values.get("model_type"), (*DUAL_TYPES, *IMAGE_TYPES, DETECTOR_TYPE))
    return values, values["model_type"], subject


def _read_tower(top: Mapping[str, Any], kind: str, name: str, subject: str) -> tuple[dict[str, Any], str]:
    """Return a tower's values and the prefix of its keys in messages."""
    if top.get(f"{name}_dict") is not None:
        name = f"{name}_dict"
    table = TOWER_KEYS[kind][name.startswith("vision")]
    return read_keys(top[name], table, subject, prefix=f"{name}.", hint=HINT), f"{name}."


def _read_processor(directory: Path, kind: str) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    file = directory / "preprocessor_config.json"
    return parse_processor(read_json(file), PROCESSORS[kind], str(file))


def _read_labels(values: Mapping[str, Any], subject: str, *, unique: bool = True) -> tuple[str, ...]:
    named = values.get("id2label")
    if named is None:
        count = values.get("num_labels", 2)
        refuse([] if type(count) is int and count > 0 else [f"num_labels: must be >= 1, got {count!r}"], subject)
        named = {number: f"LABEL_{number}" for number in range(count)}
    texts = {str(number): text for number, text in named.items()} if isinstance(named, dict) else {}
    labels = tuple(str(texts.get(str(number), "")) for number in range(len(texts)))
    # Detectors of COCO have "N/A" for the numbers that it does not use.
    if not labels or "" in labels or (unique and len({*labels}) < len(labels)):
        raise UserError(f"{subject}: id2label: must have a different name for each class from 0, got {named!r:.80}")
    return labels


def _read_pad(directory: Path, tokenizer: str, vocabulary_size: int) -> int:
    from tokenizers import Tokenizer

    maps = [
        read_json(directory / name, required=False) for name in ("special_tokens_map.json", "tokenizer_config.json")
    ]
    token = read_special_tokens(*maps).get("pad_token")
    loaded = Tokenizer.from_str(tokenizer)
    padding = loaded.padding
    found = loaded.token_to_id(token) if token is not None else padding["pad_id"] if padding else None
    if found is None or found >= vocabulary_size:
        raise UserError(
            f"{directory}: pad_token: must be a token below vocab_size {vocabulary_size}, got {token!r}",
            hint="Name it in tokenizer_config.json.",
        )
    return int(found)


def _build_blocks(found: Mapping[str, Any], subject: str, prefix: str) -> BlockConfig:
    width, heads = found["hidden_size"], found["num_attention_heads"]
    refuse(
        [f"{prefix}num_attention_heads: must divide hidden_size {width}, got {heads}"] if width % heads else [], subject
    )
    return BlockConfig(
        *(width, found["num_hidden_layers"], heads, found["intermediate_size"]),
        ACTIVATIONS[found["hidden_act"]],
        found["layer_norm_eps"],
        biased=found.get("qkv_bias", True),
        gated=found.get("use_swiglu_ffn", False),
    )
