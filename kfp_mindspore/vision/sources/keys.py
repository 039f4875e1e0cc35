"""Keys of CLIP, SigLIP, ViT, DINOv2 and YOLOS configurations with transformers' defaults (4.57)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_mindspore.lm.sources.fields import (
    COMMON,
    IGNORED,
    MOST_LAYERS,
    MOST_POSITIONS,
    Key,
    choice,
    classes,
    flag,
    number,
    only,
    size,
)

DETECTOR_CONFIG = "detector"
"""The signature's metadata with an imported detector's dimensions."""
DUAL_TYPES, IMAGE_TYPES, DETECTOR_TYPE = ("clip", "siglip"), ("vit", "dinov2"), "yolos"
PROCESSORS = {"clip": "CLIP", "siglip": "Siglip", "vit": "ViT", "dinov2": "Bit"}
ACTIVATIONS = {
    **{name: name for name in ("gelu", "quick_gelu", "relu", "silu")},
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), "gelu_tanh"),
    "swish": "silu",
}
_SIDE = 1 << 14


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_object_or_null(value: Any) -> bool:
    return value is None or _is_object(value)


def _is_sides(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(size(None, most=_SIDE).accepts, value))


def _blocks(width: int, hidden: int, layers: int, heads: int, epsilon: float, activation: str) -> dict[str, Key]:
    return {
        **COMMON,
        "architectures": IGNORED,
        "hidden_size": size(width),
        "intermediate_size": size(hidden),
        "num_hidden_layers": size(layers, most=MOST_LAYERS),
        "num_attention_heads": size(heads),
        "layer_norm_eps": number(epsilon, below=1),
        "hidden_act": choice(activation, ACTIVATIONS),
        # Of weights that are not tied in any of these networks.
        "tie_word_embeddings": IGNORED,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout"), IGNORED),
    }


def _images(blocks: Mapping[str, Key], patch: int) -> dict[str, Key]:
    return {
        **blocks,
        "image_size": size(224, most=_SIDE),
        "patch_size": size(patch, most=_SIDE),
        "num_channels": only(3),
    }


_OBJECT = Key("must be an object", _is_object, {})
_CLIP_TOP = {"projection_dim": size(512), "logit_scale_init_value": IGNORED}
# transformers' keys with their defaults, by `model_type`: the model's own, its text tower's, its image tower's.
KEYS: Mapping[str, Mapping[str, Key]] = {
    "clip": {
        **COMMON,
        "architectures": classes("CLIPModel"),
        "tie_word_embeddings": IGNORED,
        **dict.fromkeys(("text_config", "vision_config"), _OBJECT),
        # Older files have the towers a second time; transformers takes these where they are no null.
        **dict.fromkeys(("text_config_dict", "vision_config_dict"), Key(_OBJECT.reason, _is_object_or_null)),
        **_CLIP_TOP,
    },
    "siglip": {
        **COMMON,
        "architectures": classes("SiglipModel"),
        "tie_word_embeddings": IGNORED,
        **dict.fromkeys(("text_config", "vision_config"), _OBJECT),
    },
    "vit": {
        **_images(_blocks(768, 3072, 12, 12, 1e-12, "gelu"), 16),
        "architectures": classes("ViTForImageClassification"),
        "qkv_bias": flag(True),
        # Of masked images, and of the pooler, which a classifier has not.
        **dict.fromkeys(("encoder_stride", "pooler_output_size", "pooler_act"), IGNORED),
    },
    "dinov2": {
        **{
            name: key
            for name, key in _images(_blocks(768, 0, 12, 12, 1e-6, "gelu"), 14).items()
            if name != "intermediate_size"
        },
        "architectures": classes("Dinov2Model", "Dinov2ForImageClassification"),
        "mlp_ratio": size(4),
        "qkv_bias": flag(True),
        "use_swiglu_ffn": flag(False),
        # Initial values, and a backbone's outputs.
        **dict.fromkeys(("layerscale_value", "drop_path_rate", "use_mask_token"), IGNORED),
        **dict.fromkeys(("stage_names", "out_features", "out_indices", "apply_layernorm"), IGNORED),
        "reshape_hidden_states": IGNORED,
    },
    DETECTOR_TYPE: {
        **_images(_blocks(768, 3072, 12, 12, 1e-12, "gelu"), 16),
        "architectures": classes("YolosForObjectDetection"),
        "image_size": Key("must be a list of height and width", _is_sides, [512, 864]),
        "qkv_bias": flag(True),
        "num_detection_tokens": size(100),
        "use_mid_position_embeddings": flag(True),
        # Of training.
        **dict.fromkeys(("auxiliary_loss", "class_cost", "bbox_cost", "giou_cost", "eos_coefficient"), IGNORED),
        **dict.fromkeys(("bbox_loss_coefficient", "giou_loss_coefficient"), IGNORED),
    },
}
TOWER_KEYS: Mapping[str, tuple[Mapping[str, Key], Mapping[str, Key]]] = {
    "clip": (
        {
            **_blocks(512, 2048, 12, 8, 1e-5, "quick_gelu"),
            **_CLIP_TOP,
            "vocab_size": size(49408),
            "max_position_embeddings": size(77, most=MOST_POSITIONS),
            "eos_token_id": size(49407, least=0),
        },
        {**_images(_blocks(768, 3072, 12, 12, 1e-5, "quick_gelu"), 32), **_CLIP_TOP},
    ),
    "siglip": (
        {
            **_blocks(768, 3072, 12, 12, 1e-6, "gelu_pytorch_tanh"),
            "vocab_size": size(32000),
            "max_position_embeddings": size(64, most=MOST_POSITIONS),
            "projection_size": size(768),
        },
        {**_images(_blocks(768, 3072, 12, 12, 1e-6, "gelu_pytorch_tanh"), 16), "vision_use_head": only(True)},
    ),
}
