"""Vision models of transformers in an environment of their own.

python torch_vision.py write REQUEST.json       random models, each by a variant of MODELS
python torch_vision.py compute REQUEST.json     embeddings or scores for images and token IDs, into an .npz file each
python torch_vision.py pixels REQUEST.json      the processors' pixels for images, into an .npz file each
python torch_vision.py detect REQUEST.json      boxes for images, into an .npz file each
python torch_vision.py defaults                 each configuration's keys with their defaults
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    CLIPModel,
    Dinov2ForImageClassification,
    Dinov2Model,
    SiglipModel,
    ViTForImageClassification,
    YolosForObjectDetection,
    set_seed,
)

KINDS = ("clip", "siglip", "vit", "dinov2", "yolos")
TEXT: Any = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
IMAGE: Any = {
    "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 56, "image_size": 30,
    "patch_size": 7,
}  # fmt: skip
WORDS: Any = {"vocab_size": 300, "max_position_embeddings": 13}
# Unusual sizes: images that are no multiple of a patch, odd heads, projections of other widths.
MODELS: dict[str, tuple[Any, str, Any]] = {
    "clip": (CLIPModel, "clip", {
        "text_config": {**TEXT, **WORDS, "eos_token_id": 299, "bos_token_id": 298, "pad_token_id": 299},
        "vision_config": IMAGE, "projection_dim": 17,
    }),
    "clip-gelu": (CLIPModel, "clip", {
        "text_config": {**TEXT, **WORDS, "eos_token_id": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
        "vision_config": {**IMAGE, "hidden_act": "gelu"}, "projection_dim": 50,
    }),
    "siglip": (SiglipModel, "siglip", {
        "text_config": {**TEXT, **WORDS, "projection_size": 40}, "vision_config": IMAGE,
    }),
    "siglip2": (SiglipModel, "siglip", {
        "text_config": {**TEXT, **WORDS, "vocab_size": 900, "projection_size": 40, "hidden_act": "gelu"},
        "vision_config": {**IMAGE, "image_size": 28, "layer_norm_eps": 1e-4},
    }),
    "vit": (ViTForImageClassification, "vit", {**IMAGE, "id2label": {0: "cat", 1: "dog", 2: "owl"}}),
    "vit-unbiased": (ViTForImageClassification, "vit", {**IMAGE, "qkv_bias": False, "hidden_act": "gelu_new"}),
    "dinov2": (Dinov2Model, "dinov2", {**IMAGE, "image_size": 49, "mlp_ratio": 3}),
    "dinov2-same": (Dinov2Model, "dinov2", {**IMAGE, "mlp_ratio": 2}),
    "dinov2-swiglu": (Dinov2ForImageClassification, "dinov2", {
        **IMAGE, "image_size": 42, "use_swiglu_ffn": True, "qkv_bias": False, "num_labels": 5,
    }),
    # Positions for another grid of other proportions; the canvas is no multiple of a patch.
    "yolos": (YolosForObjectDetection, "yolos", {
        **IMAGE, "image_size": [35, 63], "num_detection_tokens": 11, "num_hidden_layers": 3, "num_labels": 4,
    }),
    "yolos-plain": (YolosForObjectDetection, "yolos", {
        **IMAGE, "image_size": [61, 43], "num_detection_tokens": 1, "use_mid_position_embeddings": False,
        "qkv_bias": False, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-3, "num_labels": 1,
    }),
    "yolos-two": (YolosForObjectDetection, "yolos", {
        **IMAGE, "image_size": [49, 28], "num_detection_tokens": 5, "hidden_act": "relu", "num_labels": 91,
    }),
}  # fmt: skip


def write(directory: Path, variant: str) -> None:
    """Write a model with random weights everywhere, also in norms, biases and scales."""
    set_seed(1)
    kind, name, fields = MODELS[variant]
    fields = {key: value for key, value in fields.items() if not (name == "dinov2" and key == "intermediate_size")}
    model = kind(AutoConfig.for_model(name, **fields))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key not in ("logit_scale", "logit_bias"):
                scale = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.3
                parameter.copy_(torch.randn_like(parameter) * scale + (parameter.ndim == 1 and key.endswith("weight")))
    if variant.startswith("siglip"):
        model.logit_bias.data.fill_(-7.25)
    model.save_pretrained(directory)


def compute(directory: Path, images: str, ids: str | None, output: str) -> None:
    """Write `image`, and for a dual encoder `text` and `logits` of images by texts."""
    config = AutoConfig.from_pretrained(directory)
    kinds = {"clip": CLIPModel, "siglip": SiglipModel, "vit": ViTForImageClassification}
    kinds["yolos"] = YolosForObjectDetection
    is_base = config.architectures == ["Dinov2Model"]
    kind = kinds.get(config.model_type, Dinov2Model if is_base else Dinov2ForImageClassification)
    model = kind.from_pretrained(directory, attn_implementation="eager").eval()
    pixels = torch.from_numpy(np.load(images))
    with torch.inference_mode():
        if ids is None:
            found = model(pixel_values=pixels)
            if config.model_type == "yolos":
                np.savez(output, logits=found.logits.numpy(), boxes=found.pred_boxes.numpy())
                return
            np.savez(output, image=(found.pooler_output if is_base else found.logits).numpy())
            return
        found = model(pixel_values=pixels, input_ids=torch.from_numpy(np.load(ids)).long())
    np.savez(
        output, image=found.image_embeds.numpy(), text=found.text_embeds.numpy(), logits=found.logits_per_image.numpy()
    )


def process(directory: Path, images: list[str], output: str) -> None:
    """Write the slow processor's pixels by number."""
    processor = AutoImageProcessor.from_pretrained(directory, use_fast=False)
    found = [processor(Image.open(image).convert("RGB"), return_tensors="np")["pixel_values"][0] for image in images]
    np.savez(output, pillow=PIL.__version__, **{str(number): pixels for number, pixels in enumerate(found)})


def detect(directory: Path, images: list[str], output: str, threshold: float) -> None:
    """Write each image's pixels, and its boxes after the processor's postprocessing, by number."""
    processor = AutoImageProcessor.from_pretrained(directory, use_fast=False)
    model = YolosForObjectDetection.from_pretrained(directory, attn_implementation="eager").eval()
    pad, arrays = {"height": processor.size["longest_edge"], "width": processor.size["longest_edge"]}, {}
    for number, image in enumerate(images):
        opened = Image.open(image).convert("RGB")
        bare = processor(opened, return_tensors="pt")["pixel_values"].shape[2:]
        pixels = processor(opened, return_tensors="pt", pad_size=pad)["pixel_values"]
        with torch.inference_mode():
            answer = model(pixel_values=pixels)
        # Relative to the padded picture, as the processor prepares annotations.
        sides = [
            side * whole / part for side, whole, part in zip(opened.size[::-1], pixels.shape[2:], bare, strict=True)
        ]
        (found,) = processor.post_process_object_detection(answer, threshold, torch.tensor([sides]))
        arrays |= {f"{key}.{number}": value.numpy() for key, value in found.items()}
        arrays[f"pixels.{number}"] = pixels[0].numpy()
    np.savez(output, pillow=PIL.__version__, **arrays)


def main() -> None:
    command = sys.argv[1]
    if command == "defaults":
        print(json.dumps({kind: AutoConfig.for_model(kind).to_dict() for kind in KINDS}))
        return
    functions = {"write": write, "compute": compute, "pixels": process, "detect": detect}
    for item in json.loads(Path(sys.argv[2]).read_text()):
        functions[command](**{**item, "directory": Path(item["directory"])})


if __name__ == "__main__":
    main()
