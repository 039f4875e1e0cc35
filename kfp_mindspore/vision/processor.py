"""Published image processors (preprocessor_config.json) as preprocessing steps."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.lm.sources.fields import IGNORED, Key, choice, flag, number, off, only, read_keys, refuse
from kfp_mindspore.transform.boxes import LetterboxImage
from kfp_mindspore.transform.declaration import declare_step
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.transform.values import Normalize

# The processors with their defaults (transformers 4.57): shorter side or both sides, crop, filter, mean and std.
_CLIP = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "CLIP": {"size": {"shortest_edge": 224}, "crops": True, "resample": 3, **_CLIP},
    "Bit": {"size": {"shortest_edge": 224}, "crops": True, "resample": 3, **_CLIP},
    "Siglip": {"size": {"height": 224, "width": 224}, "crops": False, "resample": 3, **_HALF},
    "ViT": {"size": {"height": 224, "width": 224}, "crops": False, "resample": 2, **_HALF},
}
_ENDS = ("ImageProcessor", "ImageProcessorFast", "FeatureExtractor")
_NAMES = {f"{kind}{end}": kind for kind in _KINDS for end in _ENDS}
_DETECTOR: Mapping[str, Any] = {
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "crops": False,
    "resample": 2,
    "mean": [0.485, 0.456, 0.406],
    "std": [0.229, 0.224, 0.225],
}
_DETECTOR_SIZES = ({"shortest_edge", "longest_edge"}, {"max_height", "max_width"}, {"height", "width"})
# By Pillow's number.
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
# A photograph's pixels; 3 bytes each while it is resized.
MAX_PIXELS = 1 << 25


def _is_side(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 16


def _is_size(value: Any) -> bool:
    sides = value if isinstance(value, dict) else {"shortest_edge": value}
    return set(sides) in ({"shortest_edge"}, {"height", "width"}) and all(map(_is_side, sides.values()))


def _is_detector_size(value: Any) -> bool:
    if not isinstance(value, dict):
        return _is_side(value)
    return set(value) in _DETECTOR_SIZES and all(map(_is_side, value.values()))


def _is_canvas(value: Any) -> bool:
    return value is None or (_is_size(value) and "height" in value)


def _is_channels(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(number(None, least=-math.inf).accepts, value))


def _is_deviations(value: Any) -> bool:
    return _is_channels(value) and all(item > 0 for item in value)


def _list_keys(kind: Mapping[str, Any]) -> dict[str, Key]:
    size = "must be a side or an object with shortest_edge, or with height and width"
    return {
        **dict.fromkeys(("image_processor_type", "feature_extractor_type"), choice(None, _NAMES)),
        **dict.fromkeys(("processor_class", "do_convert_rgb"), IGNORED),
        # Of the fast processors; channels first is what the network gets here in any case.
        **dict.fromkeys(("data_format", "device", "disable_grouping", "return_tensors"), IGNORED),
        **dict.fromkeys(("input_data_format", "do_pad", "pad_size", "auto_map"), off()),
        "default_to_square": IGNORED,
        "do_resize": flag(True),
        "size": Key(size, _is_size, kind["size"]),
        "resample": Key(
            f"must be a filter's number below {len(_FILTERS)}", lambda value: value in range(6), kind["resample"]
        ),
        "do_center_crop": flag(True) if kind["crops"] else off("this processor does not crop"),
        "crop_size": Key(size, _is_size, {"height": 224, "width": 224}) if kind["crops"] else IGNORED,
        "do_rescale": flag(True),
        "rescale_factor": number(1 / 255),
        "do_normalize": flag(True),
        "image_mean": Key("must be three numbers", _is_channels, kind["mean"]),
        "image_std": Key("must be three numbers > 0", _is_deviations, kind["std"]),
    }


def _list_detector_keys() -> dict[str, Key]:
    size = "must have shortest_edge and longest_edge, max_height and max_width, or height and width"
    always = only(True, reason="must be true: images have one size")
    return {
        **_list_keys(_DETECTOR),
        **dict.fromkeys(
            ("image_processor_type", "feature_extractor_type"), choice(None, [f"Yolos{end}" for end in _ENDS])
        ),
        "size": Key(size, _is_detector_size, _DETECTOR["size"]),
        "max_size": Key("must be a side", _is_side, 1333),
        **dict.fromkeys(("do_resize", "do_pad", "pad_and_return_pixel_mask"), always),
        "pad_size": Key("must have height and width", _is_canvas),
        # Of training data.
        **dict.fromkeys(("format", "do_convert_annotations"), IGNORED),
    }


def parse_processor(
    values: Mapping[str, Any], default: str, subject: str
) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    """Return the preprocessing steps' declarations, and the images' height and width after them.

    Args:
        values: preprocessor_config.json's content.
        default: The processor where the file does not name one: `CLIP`, `Bit`, `Siglip` or `ViT`.
        subject: The file's path, for messages.

    Raises:
        ValidationError: A key or a processor is not supported, or images keep different sizes; the message names the
            key.
    """
    named = values.get("image_processor_type") or values.get("feature_extractor_type")
    kind = _NAMES.get(named, default) if isinstance(named, str) else default
    found = read_keys(values, _list_keys(_KINDS[kind]), subject)
    size: Any = found["size"]
    crop: Any = ()
    resize: int | tuple[int, ...] = ()
    if found["do_resize"]:
        if not isinstance(size, dict):
            size = {"shortest_edge": size} if _KINDS[kind]["crops"] else {"height": size, "width": size}
        resize = size["shortest_edge"] if "shortest_edge" in size else (size["height"], size["width"])
    if _KINDS[kind]["crops"] and found["do_center_crop"]:
        crop = found["crop_size"]
        sides = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
        refuse(["crop_size: must have height and width"] if "height" not in sides else [], subject)
        crop = (sides["height"], sides["width"])
    fixed = crop or (resize if isinstance(resize, tuple) else ())
    refuse(
        [] if fixed else ["size: must have height and width, or do_center_crop be true: images have one size"], subject
    )
    mean, std = _read_scale(found)
    steps = [
        DecodeImage(max_pixels=MAX_PIXELS, resize=resize, resample=_FILTERS[found["resample"]], crop=crop, rotate=True),
        Normalize(mean, std),
    ]
    return [declare_step(step) for step in steps], (fixed[0], fixed[1])


def parse_detector_processor(values: Mapping[str, Any], subject: str) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    """Return a detector's preprocessing steps, and the height and width of the canvas that holds each image.

    Args:
        values: preprocessor_config.json's content.
        subject: The file's path, for messages.

    Raises:
        ValidationError: A key or a processor is not supported; the message names the key.
    """
    found = read_keys(values, _list_detector_keys(), subject)
    size: Any = found["size"]
    if not isinstance(size, dict):
        size = {"shortest_edge": size, "longest_edge": found["max_size"]}
    rule: dict[str, Any] = {"stretch": True} if "height" in size else {}
    if "longest_edge" in size:
        rule = {"shorter": size["shortest_edge"], "longer": size["longest_edge"]}
        largest = (size["longest_edge"] - size["longest_edge"] % 16,) * 2
        refuse([] if largest[0] else ["size: longest_edge must be at least 16"], subject)
    else:
        largest = (size["height"], size["width"]) if rule else (size["max_height"], size["max_width"])
    padded = found["pad_size"]
    canvas = (padded["height"], padded["width"]) if padded else largest
    fits = all(map(operator.ge, canvas, largest)) if "longest_edge" in size else canvas == largest
    refuse(
        [] if fits else [f"pad_size: must be height and width of the largest image, {largest}, got {canvas}"], subject
    )
    mean, std = _read_scale(found)
    steps = [
        LetterboxImage(
            canvas, **rule, fill=mean, max_pixels=MAX_PIXELS, resample=_FILTERS[found["resample"]], column="image"
        ),
        Normalize(mean, std, column="image"),
    ]
    return [declare_step(step) for step in steps], canvas


def _read_scale(found: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return mean and std for values from 0 to 1, as `DecodeImage` gives them."""
    factor = 255 * found["rescale_factor"] if found["do_rescale"] else 255.0
    mean, std = (found["image_mean"], found["image_std"]) if found["do_normalize"] else ([0.0] * 3, [1.0] * 3)
    return [value / factor for value in mean], [value / factor for value in std]
