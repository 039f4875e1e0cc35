"""Names of CLIP, SigLIP, ViT, DINOv2 and YOLOS tensors in Hugging Face directories, by the networks' names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kfp_mindspore.lm.sources.safetensors import SafetensorsReader
from kfp_mindspore.vision.network import BlockConfig, DetectorConfig, ImageConfig, TextConfig
from kfp_mindspore.vision.sources.keys import DUAL_TYPES

_TOWER_LAYER = {
    "norm1": ("layer_norm1",),
    "qkv": tuple(f"self_attn.{part}_proj" for part in "qkv"),
    "out": ("self_attn.out_proj",),
    "norm2": ("layer_norm2",),
    "up": ("mlp.fc1",),
    "down": ("mlp.fc2",),
}
_VIT_LAYER = {
    "norm1": ("layernorm_before",),
    "qkv": tuple(f"attention.attention.{part}" for part in ("query", "key", "value")),
    "out": ("attention.output.dense",),
    "norm2": ("layernorm_after",),
    "up": ("intermediate.dense",),
    "down": ("output.dense",),
}
_DINO_LAYER = {**_VIT_LAYER, "norm1": ("norm1",), "norm2": ("norm2",), "up": ("mlp.fc1",), "down": ("mlp.fc2",)}


def _list_layers(config: BlockConfig, prefix: str, names: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    return {
        f"layers.{index}.{name}.{kind}": tuple(f"{prefix}.{index}.{source}.{kind}" for source in sources)
        for index in range(config.layers)
        for name, sources in names.items()
        for kind in ("weight", "bias")
    }


def _pair(name: str, source: str) -> dict[str, tuple[str, ...]]:
    return {f"{name}.{kind}": (f"{source}.{kind}",) for kind in ("weight", "bias")}


def list_image_parts(config: ImageConfig, kind: str, *, has_labels: bool) -> dict[str, tuple[str, ...]]:
    """Return the published tensors that make each of `list_image_weights`' arrays.

    Args:
        config: The network's.
        kind: `model_type`.
        has_labels: Whether it is a classifier.
    """
    if kind in DUAL_TYPES:
        root, embeddings, head = "vision_model.", "vision_model.embeddings.", "vision_model.head."
        parts = _list_layers(config.blocks, f"{root}encoder.layers", _TOWER_LAYER)
        parts |= {"class": (f"{embeddings}class_embedding",), "positions": (f"{embeddings}position_embedding.weight",)}
        parts |= _pair("patch", f"{embeddings}patch_embedding") | _pair("pre_norm", f"{root}pre_layrnorm")
        parts |= _pair("norm", f"{root}post_layernorm") | _pair("output", "visual_projection")
        parts |= {"head.probe": (f"{head}probe",)} | _pair("head.out", f"{head}attention.out_proj")
        parts |= {f"head.qkv.{part}": (f"{head}attention.in_proj_{part}",) for part in ("weight", "bias")}
        parts |= _pair("head.norm", f"{head}layernorm") | _pair("head.up", f"{head}mlp.fc1")
        return parts | _pair("head.down", f"{head}mlp.fc2")
    root = f"{kind}." if has_labels else ""
    layer = _VIT_LAYER
    if kind == "dinov2":
        gated = {"up": ("mlp.weights_in",), "down": ("mlp.weights_out",)} if config.blocks.gated else {}
        layer = {**_DINO_LAYER, **gated}
    parts = _list_layers(config.blocks, f"{root}encoder.layer", layer)
    parts |= {"class": (f"{root}embeddings.cls_token",), "positions": (f"{root}embeddings.position_embeddings",)}
    parts |= _pair("patch", f"{root}embeddings.patch_embeddings.projection")
    parts |= _pair("norm", f"{root}layernorm") | _pair("output", "classifier")
    if kind == "dinov2":
        for index in range(config.blocks.layers):
            for place, name in enumerate(("out", "down"), 1):
                parts[f"layers.{index}.{name}.scale"] = (f"{root}encoder.layer.{index}.layer_scale{place}.lambda1",)
    return parts


def list_detector_parts(config: DetectorConfig) -> dict[str, tuple[str, ...]]:
    """Return the published tensors that make each of `list_detector_weights`' arrays.

    Args:
        config: The network's.
    """
    embeddings = "vit.embeddings."
    parts = _list_layers(config.blocks, "vit.encoder.layer", _VIT_LAYER) | _pair("norm", "vit.layernorm")
    parts |= {"class": (f"{embeddings}cls_token",), "queries": (f"{embeddings}detection_tokens",)}
    parts |= {"positions": (f"{embeddings}position_embeddings",)}
    parts |= {"mid_positions": ("vit.encoder.mid_position_embeddings",)}
    parts |= _pair("patch", f"{embeddings}patch_embeddings.projection")
    for head, source in (("classes", "class_labels_classifier"), ("boxes", "bbox_predictor")):
        for index in range(3):
            parts |= _pair(f"{head}.{index}", f"{source}.layers.{index}")
    return parts


def list_text_parts(config: TextConfig, kind: str) -> dict[str, tuple[str, ...]]:
    """Return the published tensors that make each of `list_text_weights`' arrays.

    Args:
        config: The network's.
        kind: `model_type`.
    """
    root = "text_model."
    parts = _list_layers(config.blocks, f"{root}encoder.layers", _TOWER_LAYER)
    parts |= {"embedding": (f"{root}embeddings.token_embedding.weight",)}
    parts |= {"positions": (f"{root}embeddings.position_embedding.weight",)}
    parts |= _pair("norm", f"{root}final_layer_norm")
    return parts | _pair("output", "text_projection" if kind == "clip" else f"{root}head")


# Dimensions by the ends of names.
_DIMENSIONS = {
    "cls_token": 1,
    "probe": 1,
    "detection_tokens": 2,
    "mid_position_embeddings": 3,
    "position_embeddings": 2,
}


class TensorReader(SafetensorsReader):
    """Tensors without further dimensions of 1, which learned tokens and positions have; scalars with shape (1,)."""

    def __init__(self, reader: SafetensorsReader) -> None:
        self.entries = {}
        for name, (file, start, entry) in reader.entries.items():
            shape = list(entry["shape"]) or [1]
            count = next((count for end, count in _DIMENSIONS.items() if name.endswith(end)), len(shape))
            while len(shape) > count and 1 in shape[:-1]:
                shape.remove(1)
            self.entries[name] = file, start, {**entry, "shape": shape}
