"""A detector's steps: pictures into a canvas, boxes in the pictures' pixels, what is refused."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.signature import Signature
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform import Normalize, Pipeline, TransformInputError
from kfp_mindspore.transform.base import fill_objects
from kfp_mindspore.transform.bound import bind_transform
from kfp_mindspore.transform.boxes import LetterboxImage, SelectBoxes
from kfp_mindspore.transform.declaration import build_pipeline, declare

SIGNATURE = Signature(
    (TensorSpec("image", "float32", (-1, 3, 48, 64)), TensorSpec("extent", "float32", (-1, 2))),
    (TensorSpec("logits", "float32", (-1, 3, 3)), TensorSpec("boxes", "float32", (-1, 3, 4))),
    "2.9",
)
PIPELINE = Pipeline([LetterboxImage((48, 64), column="image")], [SelectBoxes(["cat", "dog"])])
# Two likely boxes of one picture, the second class and the first; none of the other picture.
OUTPUTS = {
    "logits": np.array([[[0, 3, 0], [0, 0, 3], [4, 0, 0]], [[0, 0, 9]] * 3], np.float32),
    "boxes": np.array([[[5, 6, 2, 4], [1, 1, 2, 2], [50, 30, 20, 10]], [[1, 1, 2, 2]] * 3], np.float32),
}


def encode(height: int, width: int, mode: str = "RGB", kind: str = "PNG", **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def compute(step: LetterboxImage, *pictures: bytes) -> dict[str, Any]:
    return step.apply({"image": fill_objects(pictures)})


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (480, 640, (800, 1056)),
        (427, 640, (800, 1184)),
        (640, 480, (1056, 800)),
        (300, 1200, (320, 1328)),
        (1200, 300, (1328, 320)),
        (1, 1, (800, 800)),
        (800, 900, (800, 896)),
    ],
)
def test_sides_are_those_of_published_processor(height: int, width: int, expected: tuple[int, int]) -> None:
    # get_size_with_aspect_ratio((height, width), 800, 1333) of transformers 4.57's image_processing_yolos.
    step = LetterboxImage((1328, 1328), shorter=800, longer=1333)
    assert step.resolve_size(height, width) == expected


def test_picture_is_padded_at_right_and_bottom() -> None:
    found = compute(LetterboxImage((48, 64), fill=(0.1, 0.2, 0.3)), encode(96, 32), encode(24, 32))
    assert found["image"].shape == (2, 3, 48, 64)
    np.testing.assert_array_equal(found["image"][0, :, :, 16:].reshape(3, -1).T[0], np.float32([0.1, 0.2, 0.3]))
    image = Image.open(io.BytesIO(encode(24, 32))).resize((64, 48), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found["image"][1], np.asarray(image).transpose(2, 0, 1) / 255, atol=1e-6)
    # The canvas in the pixels of each picture.
    assert found["extent"].tolist() == [[96, 128], [24, 32]]


def test_padding_is_zero_after_normalisation() -> None:
    mean = [0.485, 0.456, 0.406]
    steps = [LetterboxImage((48, 64), fill=mean, column="image"), Normalize(mean, [0.2] * 3, column="image")]
    found = Pipeline(steps).preprocess({"image": fill_objects([encode(96, 32)])})
    assert not found["image"][:, :, :, 16:].any()


def test_rotated_picture_is_computed_as_it_is_shown() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encode(20, 60, exif=exif)
    shown = compute(LetterboxImage((48, 64)), content)
    assert shown["extent"].tolist() == [[60, 80]]
    assert shown["image"][0, :, :, 16:].max() == 0
    assert shown["image"][0, :, :, :16].min(0).max() > 0


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "JPEG"), ("L", "PNG"), ("P", "PNG"), ("RGBA", "PNG")])
def test_picture_of_other_mode_is_converted(mode: str, kind: str) -> None:
    assert compute(LetterboxImage((48, 64)), encode(30, 40, mode, kind))["image"].shape == (1, 3, 48, 64)


def test_single_pixel_fills_canvas() -> None:
    found = compute(LetterboxImage((48, 48)), encode(1, 1))
    assert found["extent"].tolist() == [[1, 1]]
    assert np.ptp(found["image"], axis=(2, 3)).max() == 0


@pytest.mark.parametrize(
    ("step", "content", "message"),
    [
        (LetterboxImage((48, 64)), encode(1, 500), "image: is too narrow: resized into 64 x 48 .* has 500 x 1"),
        (
            LetterboxImage((64, 64), shorter=32, longer=64),
            encode(500, 40),
            "is too narrow: .* at least one block of 16 pixels, has 40 x 500",
        ),
        (LetterboxImage((48, 64)), encode(30, 40)[:-40], "must be a whole PNG or JPEG file"),
        (LetterboxImage((48, 64)), b"GIF89a", "must be a whole PNG or JPEG file"),
        (LetterboxImage((48, 64), max_pixels=99), encode(10, 10), "must have at most 99 pixels, has 10 x 10"),
    ],
)
def test_picture_is_refused(step: LetterboxImage, content: bytes, message: str) -> None:
    with pytest.raises(TransformInputError, match=message):
        compute(step, content)


def test_boxes_above_threshold_come_first() -> None:
    found = PIPELINE.postprocess(OUTPUTS)
    assert found["count"].tolist() == [2, 0]
    assert found["labels"].tolist() == [[b"dog", b"cat", b""], [b""] * 3]
    likely = np.exp(3) / (np.exp(3) + 2), np.exp(4) / (np.exp(4) + 2)
    np.testing.assert_allclose(found["scores"], [[*likely, 0], [0] * 3], atol=1e-6)
    assert found["boxes"][0].tolist() == [[4, 4, 6, 8], [40, 25, 60, 35], [0] * 4]


@pytest.mark.parametrize(("threshold", "count"), [(0.0, 3), (0.95, 1), ("0.95", 1), (1, 0), (None, 2)])
def test_request_has_threshold_of_its_own(threshold: Any, count: int) -> None:
    adapted = PIPELINE.adapt({"threshold": threshold, "binary_data_output": True})
    assert adapted.postprocess(OUTPUTS)["count"][0] == count
    assert PIPELINE.postprocess(OUTPUTS)["count"][0] == 2


@pytest.mark.parametrize("threshold", [1.5, -0.1, "a", "nan", float("nan"), True, [0.5]])
def test_threshold_outside_0_to_1_is_refused(threshold: Any) -> None:
    bound = bind_transform(PIPELINE, SIGNATURE, "detector")
    with pytest.raises(TransformInputError, match=r"parameters\.threshold: must be a number from 0 to 1, got"):
        bound.adapt({"threshold": threshold})


def test_declared_detector_accepts_pictures_only() -> None:
    bound = bind_transform(build_pipeline(declare(PIPELINE)), SIGNATURE, "detector")
    assert bound.inputs == (TensorSpec("image", BYTES, (-1,)),)
    assert [(spec.name, spec.dtype, spec.shape) for spec in bound.outputs] == [
        ("count", "int64", (-1,)), ("labels", BYTES, (-1, 3)), ("scores", "float32", (-1, 3)),
        ("boxes", "float32", (-1, 3, 4)),
    ]  # fmt: skip
    example = bound.transform.make_example(SIGNATURE)
    assert example is not None
    assert bound.run_preprocess(example)["extent"].shape == (2, 2)
    assert bound.run_postprocess(OUTPUTS)["count"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda: SelectBoxes([]), "labels: must be a list of texts"),
        (lambda: SelectBoxes(["cat"], threshold=2), "threshold: must be 0 to 1, got 2"),
        (lambda: LetterboxImage(()), "must have a canvas of two sides"),
        (lambda: LetterboxImage((8, 8), fill=(0,)), "a fill of three numbers"),
        (lambda: SelectBoxes(["cat"]).infer_outputs(SIGNATURE.outputs), r"must have float32 'logits' \(N, Q, 2\)"),
    ],
)
def test_wrong_arguments_are_refused(step: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        step()
