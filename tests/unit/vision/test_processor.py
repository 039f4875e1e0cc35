"""Published image processors: pixels, defaults, and refused keys. tests/peers compares pixels with transformers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.errors import UserError
from kfp_mindspore.transform.declaration import build_pipeline
from kfp_mindspore.vision.processor import parse_processor

# As published models have it.
CLIP = {
    "crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3, "size": 224,
}  # fmt: skip
VIT = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224}


def encode(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def compute(values: dict[str, Any], default: str, image: Any) -> Any:
    steps, size = parse_processor(values, default, "preprocessor_config.json")
    found = build_pipeline({"pre": steps}).preprocess({"image": np.array([encode(image), b""], object)[:1]})["image"]
    assert found.shape == (1, 3, *size)
    return found[0]


def make_image(height: int, width: int) -> Any:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def test_shorter_side_is_resized_and_centre_kept() -> None:
    image = make_image(300, 450)
    expected = np.asarray(image.resize((336, 224), Image.Resampling.BICUBIC).crop((56, 0, 280, 224))) / 255
    expected = (expected - CLIP["image_mean"]) / CLIP["image_std"]
    np.testing.assert_allclose(compute(CLIP, "CLIP", image), expected.transpose(2, 0, 1), atol=1e-6)


def test_both_sides_are_resized_by_defaults_of_processor() -> None:
    image = make_image(300, 450)
    expected = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR)) / 255 * 2 - 1
    np.testing.assert_allclose(compute(VIT, "ViT", image), expected.transpose(2, 0, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"do_normalize": False}, lambda pixels: pixels / 255),
        ({"do_rescale": False, "do_normalize": False}, lambda pixels: pixels),
        ({"rescale_factor": 1 / 127.5}, lambda pixels: pixels / 63.75 - 1),
        ({"do_rescale": False}, lambda pixels: (pixels - 0.5) / 0.5),
    ],
)
def test_scale_and_normalisation_are_optional(changes: dict[str, Any], expected: Any) -> None:
    image = make_image(8, 8)
    values = {**VIT, "size": {"height": 8, "width": 8}, **changes}
    pixels = np.asarray(image).transpose(2, 0, 1).astype(np.float64)
    np.testing.assert_allclose(compute(values, "ViT", image), expected(pixels), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "image_processor_type: must be one of CLIPImageProcessor"),
        ({"image_processor_type": "Siglip2ImageProcessor"}, "image_processor_type: must be one of"),
        ({"size": {"longest_edge": 224}}, "size: must be a side or an object with shortest_edge"),
        ({"do_center_crop": False}, "size: must have height and width, or do_center_crop be true"),
        ({"resample": 6}, "resample: must be a filter's number below 6, got 6"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std: must be three numbers > 0"),
        ({"image_mean": [0.5]}, "image_mean: must be three numbers"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order: not known, got True"),
        ({"auto_map": {"AutoImageProcessor": "mine.Processor"}}, "auto_map: not supported"),
    ],
)
def test_other_processor_is_refused_by_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_processor({**CLIP, **changes}, "CLIP", "preprocessor_config.json")
