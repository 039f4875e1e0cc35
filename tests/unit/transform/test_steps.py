"""The steps: their results, equality of rows and batches, and the errors of invalid inputs."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from kfp_mindspore.errors import UserError
from kfp_mindspore.transform import (
    CenterCrop,
    DecodeImage,
    Normalize,
    OneHot,
    Pipeline,
    Resize,
    Softmax,
    Step,
    TensorSpec,
    Tokenize,
    TopK,
    TransformInputError,
    Vocabulary,
)
from kfp_mindspore.transform.base import Signature, fill_objects
from kfp_mindspore.transform.bound import bind_transform
from kfp_mindspore.transform.categories import Categories, find_refused
from kfp_mindspore.transform.declaration import declare_step

SCORES = Signature(
    (TensorSpec("image", "float32", (-1, 3, 8, 8)),), (TensorSpec("output", "float32", (-1, 4)),), "2.9.0"
)


def encode(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels)).save(buffer, kind, **options)
    return buffer.getvalue()


def make_pixels(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


# ---- equality of rows and batches

IMAGES = npst.arrays(np.float32, st.tuples(*(st.integers(1, 9),) * 4), elements=st.floats(-10, 10, width=32))
SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12))
MATRICES = npst.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.tuples(st.integers(1, 6), st.integers(1, 7)),
    elements=st.floats(-50, 50, width=16),
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(
    ("make", "batches"),
    [
        (lambda draw: Resize(draw(SIZES)), IMAGES),
        (lambda draw: CenterCrop(draw(SIZES)), IMAGES),
        (lambda draw: Normalize(draw(st.floats(-2, 2)), draw(st.floats(0.1, 3))), IMAGES),
        (lambda draw: Normalize(0.5, 2.0), MATRICES),
        (lambda draw: Softmax(), MATRICES),
        (lambda draw: TopK(draw(st.integers(1, 9))), MATRICES),
    ],
    ids=["resize", "crop", "normalize", "normalize-features", "softmax", "topk"],
)
def test_row_equals_its_row_of_batch(
    make: Callable[[Any], Step], batches: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    step, batch = make(data.draw), data.draw(batches)
    before = batch.copy()
    whole = step.compute(batch)
    np.testing.assert_array_equal(batch, before)
    assert len(whole) == len(batch)
    rows = [step(row) for row in batch]
    assert all(row.dtype == whole.dtype for row in rows)
    np.testing.assert_array_equal(np.stack(rows), whole)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=4),
    mode=st.sampled_from(["L", "RGB"]),
    kind=st.sampled_from(["PNG", "JPEG"]),
)
def test_images_of_different_sizes_equal_their_rows(sizes: list[tuple[int, int]], mode: str, kind: str) -> None:
    pipeline = Pipeline([DecodeImage(mode), Resize((10, 9)), CenterCrop((8, 8)), Normalize(0.5, 0.25)])
    contents = [encode(make_pixels(*size, seed), kind) for seed, size in enumerate(sizes)]
    batch = pipeline.preprocess({"image": fill_objects(contents)})["image"]
    assert (batch.dtype, batch.shape) == (np.float32, (len(sizes), {"L": 1, "RGB": 3}[mode], 8, 8))
    forms: list[Callable[[bytes], Any]] = [bytes, lambda content: np.frombuffer(content, np.uint8)]
    for form in forms:
        rows = [reduce(lambda row, step: step(row), pipeline.pre, form(content)) for content in contents]
        np.testing.assert_array_equal(np.stack(rows), batch)


# ---- results


@settings(max_examples=40, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), size=SIZES)
def test_resize_equals_pillow(height: int, width: int, size: tuple[int, int]) -> None:
    plane = np.random.default_rng(height * width).random((height, width), np.float32)
    expected = np.asarray(Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR))
    np.testing.assert_allclose(Resize(size)(plane[None])[0], expected, atol=1e-5)


def test_decoded_pixels_equal_encoded_ones() -> None:
    pixels = make_pixels(5, 7)
    decoded = DecodeImage()(encode(pixels))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, pixels.transpose(2, 0, 1).astype(np.float32) / 255)
    grey = DecodeImage("L")(encode(pixels[..., 0]))
    np.testing.assert_array_equal(grey, pixels[None, ..., 0].astype(np.float32) / 255)
    assert DecodeImage("RGB")(encode(pixels[..., 0])).shape == (3, 5, 7)
    transparent = np.dstack([pixels, np.full((5, 7), 128, np.uint8)])
    np.testing.assert_array_equal(DecodeImage()(encode(transparent)), decoded)


def test_normalize_by_channel() -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2)
    found = Normalize([0, 4, 8], [1, 2, 4]).compute(images)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[1, 2], (images[1, 2] - 8) / 4)


def test_softmax_of_large_scores() -> None:
    found = Softmax().compute(np.array([[1e4, 1e4], [-1e4, 0], [-np.inf, 0]], np.float32))
    np.testing.assert_array_equal(found, [[0.5, 0.5], [0, 1], [0, 1]])


def test_top_classes_with_labels() -> None:
    step = TopK(2, ["né", "b", "c", "d"], column="output")
    scores = np.array([[1, 3, 3, 2], [9, 0, np.nan, 1]], np.float32)
    found = step.apply({"output": scores, "other": np.ones(2)})
    assert list(found) == ["classes", "scores", "other"]
    assert found["classes"].tolist() == [[b"b", b"c"], ["né".encode(), b"d"]]
    assert found["scores"].tolist() == [[3, 3], [9, 1]]
    assert TopK(1).apply({"output": scores})["classes"].tolist() == [[1], [0]]


def test_crop_cuts_and_pads_around_centre() -> None:
    image = np.arange(1, 13, dtype=np.float32).reshape(1, 3, 4)
    np.testing.assert_array_equal(CenterCrop((1, 2))(image), [[[6, 7]]])
    np.testing.assert_array_equal(CenterCrop((5, 2))(image), [[[0, 0], [2, 3], [6, 7], [10, 11], [0, 0]]])


# ---- errors


def make_bomb() -> bytes:
    """Return a PNG file with 400,000,000 pixels in its header."""
    content = encode(make_pixels(1, 1))
    header = b"IHDR" + struct.pack(">II", 20_000, 20_000) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "image: must be a whole PNG or JPEG file, .* got no bytes"),
        (b"GIF89a", "image: must be a whole PNG or JPEG file, .* got 6 bytes that cannot be decoded"),
        (encode(make_pixels(9, 9))[:-30], "must be a whole PNG or JPEG file"),
        (encode(make_pixels(9, 9), "JPEG")[:-20], "must be a whole PNG or JPEG file"),
        (encode(make_pixels(4, 4), "BMP"), "must be a whole PNG or JPEG file"),
        (encode(np.zeros((3, 3), np.uint16)), "must have 8 bits a channel, its mode is I;16"),
        (encode(make_pixels(11, 10)), "must have at most 100 pixels, has 10 x 11"),
        (make_bomb, "must have at most 100 pixels"),
        (encode(np.zeros((1, 70_000), bool)), "image: must have at most 100 pixels, has 70000 x 1"),
    ],
)
def test_invalid_image_files_are_rejected(content: Any, message: str) -> None:
    with pytest.raises(TransformInputError, match=message):
        DecodeImage(max_pixels=100)(content() if callable(content) else content)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG"]))
def test_damaged_files_are_decoded_or_rejected(data: st.DataObject, kind: str) -> None:
    content = bytearray(encode(make_pixels(6, 6), kind))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(content)))
    for candidate in (bytes(content), bytes(content[:stop])):
        try:
            decoded = DecodeImage(max_pixels=10_000)(candidate)
        except TransformInputError:
            continue
        assert decoded.dtype == np.float32


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_image_as_base64_or_data_url_equals_its_file(kind: str) -> None:
    file = encode(make_pixels(5, 4), kind)
    text = base64.b64encode(file)
    for content in (text, b"data:image/png;base64," + text):
        np.testing.assert_array_equal(DecodeImage()(content), DecodeImage()(file))
    for content in (text[:-9], b"data:image/png;base64,?", b"data:", b"iVBORw0KGgo", b"hello"):
        with pytest.raises(
            TransformInputError, match=r'must be a whole PNG or JPEG file, in JSON as {"b64": "…"}, got'
        ):
            DecodeImage()(content)


@pytest.mark.parametrize("step", [OneHot(["a", "b"], column="x"), Vocabulary(["a", "b"], column="x")])
def test_unknown_categories_are_counted_or_refused_in_requests(step: Categories) -> None:
    arrays = {"x": fill_objects([b"a", b"c", b"d"]), "y": np.zeros(3, np.float32)}
    unknown: dict[str, int] = {}
    found = Pipeline([step]).preprocess_request(arrays, unknown)
    assert unknown == {"x": 2}
    strict = Pipeline([step.replace_rule("refuse")])
    np.testing.assert_array_equal(found["x"], strict.preprocess(arrays)["x"])
    with pytest.raises(TransformInputError, match="input 'x': row 1: unknown category 'c', not in the training data"):
        strict.preprocess_request(arrays, {})
    assert find_refused(strict, arrays).tolist() == [False, True, True]
    assert declare_step(strict.pre[0])["unknown"] == "refuse"
    assert "unknown" not in declare_step(step)


def test_unknown_tokens_of_texts_are_no_categories() -> None:
    unknown: dict[str, int] = {}
    found = Pipeline([Tokenize(3, values=["a"])]).preprocess_request({"x": fill_objects([b"ab"])}, unknown)
    assert (found["x"].tolist(), unknown) == ([[2, 1, 0]], {})


def test_unknown_categories_in_lists_are_counted() -> None:
    rows = fill_objects([np.array([b"a"], object), np.array([b"b", b"c"], object)])
    unknown: dict[str, int] = {}
    with pytest.raises(TransformInputError, match="all rows must have the same shape"):
        Pipeline([Vocabulary(["a", "b"])]).preprocess_request({"x": rows}, unknown)
    assert unknown == {"x": 1}
    with pytest.raises(TransformInputError, match="row 1: unknown category 'c'"):
        Pipeline([Vocabulary(["a", "b"], unknown="refuse")]).preprocess_request({"x": rows}, {})


def test_error_names_row() -> None:
    with pytest.raises(TransformInputError, match="image of row 1: must be a whole"):
        DecodeImage().compute(fill_objects([encode(make_pixels(2, 2)), b"x"]))


def test_side_length_is_limited() -> None:
    with pytest.raises(TransformInputError, match="image: must have sides of at most 65535, has 70000 x 1"):
        DecodeImage()(encode(np.zeros((1, 70_000), bool)))


@pytest.mark.parametrize("shape", [(1, 1, 65_535), (1, 65_535, 1), (1, 1, 200_000), (3, 2_000, 3_000)])
def test_resize_of_extreme_shapes(shape: tuple[int, ...]) -> None:
    image = np.ones(shape, np.float32)
    for size in ((224, 224), (1, 1), (2, 300)):
        np.testing.assert_allclose(Resize(size)(image), np.ones((shape[0], *size)), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "resize", "crop", "expected"),
    [
        # The shorter side's new length, then the centre.
        ((60, 90), 24, (20, 18), ((36, 24), (9, 2, 27, 22))),
        ((91, 40), 20, (20, 20), ((20, 45), (0, 12, 20, 32))),
        ((33, 21), (9, 14), (), ((14, 9), (0, 0, 14, 9))),
        ((1, 1), 8, (8, 8), ((8, 8), (0, 0, 8, 8))),
    ],
)
def test_decoded_image_is_resized_and_cropped_as_pillow_does(
    shape: tuple[int, int], resize: Any, crop: Any, expected: Any
) -> None:
    pixels, (size, box) = make_pixels(*shape), expected
    found = DecodeImage(resize=resize, crop=crop)(encode(pixels))
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).crop(box)
    np.testing.assert_array_equal(np.rint(found * 255), np.asarray(image).transpose(2, 0, 1))
    assert found.max() <= 1


def test_crop_pads_small_images_with_zeros() -> None:
    found = DecodeImage("L", crop=(4, 3))(encode(np.full((1, 2), 255, np.uint8)))
    assert found.tolist() == [[[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 0, 0]]]


def test_rotation_of_file_is_applied_on_request() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encode(make_pixels(4, 9), exif=exif)
    assert DecodeImage()(content).shape == (3, 4, 9)
    np.testing.assert_array_equal(DecodeImage(rotate=True)(content), np.rot90(DecodeImage()(content), -1, (1, 2)))


def test_narrow_image_is_refused_before_it_is_resized() -> None:
    with pytest.raises(TransformInputError, match="image: is too narrow: resized to 448000 x 224 it must have at most"):
        DecodeImage(resize=224, crop=(224, 224))(encode(np.zeros((1, 2000), np.uint8)))


def test_pixels_of_request_are_limited() -> None:
    files = fill_objects([encode(make_pixels(10, 10))] * 5)
    assert len(DecodeImage(max_pixels=100).compute(files[:4])) == 4
    with pytest.raises(TransformInputError, match="row 4: all images of a request must have at most 400 pixels"):
        DecodeImage(max_pixels=100).compute(files)


def test_images_of_different_sizes_need_resize() -> None:
    files = fill_objects([encode(make_pixels(8, 8)), encode(make_pixels(9, 8))])
    with pytest.raises(
        TransformInputError, match=r"all rows must have the same shape, got \(3, 8, 8\) and \(3, 9, 8\)"
    ):
        Pipeline([DecodeImage()]).preprocess({"image": files})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DecodeImage("CMYK"), "DecodeImage: mode: must be RGB or L, got 'CMYK'"),
        (lambda: DecodeImage(resample="area"), "DecodeImage: resample: must be one of nearest, box"),
        (lambda: DecodeImage(resize=0), r"DecodeImage: resize: must have sides from 1 to 65535, got \(0, 0\)"),
        (lambda: DecodeImage(crop=(8,)), "DecodeImage: crop: must have sides"),
        (lambda: Resize((0, 8)), r"Resize: size: must be \(height, width\) of at least 1, got \(0, 8\)"),
        (lambda: CenterCrop((8,)), "CenterCrop: size: must be"),  # type: ignore[arg-type]
        (lambda: Normalize([1, 2, 3], [1, 2]), "mean and std: must be one number or one a channel"),
        (lambda: Normalize(0, [1, 0]), "std not 0"),
        (lambda: Normalize(float("nan"), 1), "must be finite"),
        (
            lambda: Tokenize(4, lowercase=True),
            "lowercase: must be true or false with unit words or subwords, got True, unit char",
        ),
        (lambda: OneHot(unknown="fail"), "OneHot: unknown: must be ignore or refuse, got 'fail'"),
        (lambda: TopK(0), "TopK: k: must be a number of at least 1, got 0"),
        (lambda: TopK(1, "abc"), "TopK: labels: must be a list of texts"),
        (lambda: TopK(1, classes="x", scores="x"), "must have different names"),
        (lambda: Pipeline([Resize]), "Pipeline: pre: must hold steps such as"),  # type: ignore[list-item]
    ],
)
def test_invalid_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (Pipeline([DecodeImage(crop=(9, 8))]), r"gives float32 of shape \(-1, 3, 9, 8\)"),
        (Pipeline([DecodeImage("L")]), r"gives float32 of shape \(-1, 1, H, W\), but 'image' must be float32"),
        (Pipeline([Resize((9, 8))]), r"gives images of 9 x 8, but 'image' must have shape \(-1, 3, 8, 8\)"),
        (Pipeline([Normalize([1, 1], 1)]), "is for 2 channels, but 'image' has shape"),
        (Pipeline([Resize((8, 8), column="picture")]), "column: must be one of 'image', got 'picture'"),
        (Pipeline([], [TopK(5)]), "TopK: k: must be at most 4, the classes of 'output', got 5"),
        (Pipeline([], [TopK(1, ["a", "b"])]), "labels: must be 4, one a class of 'output', got 2"),
        (Pipeline([], [TopK(1), Softmax()]), "Softmax: column: must be named, one of 'classes', 'scores'"),
        (Pipeline([], [TopK(1), Softmax(column="classes")]), "must hold floating numbers, its dtype is int64"),
        (Pipeline([], [TopK(1), TopK(1, column="scores")]), "outputs: must have different names"),
        (
            Pipeline(inputs=[TensorSpec("x", "float32", (-1, 2))]),
            "differ from the model's, but there is no preprocessing",
        ),
        (Pipeline([Softmax()], inputs=[]), "inputs: must be a tuple of TensorSpec, at least one"),
        (Pipeline([Softmax()], inputs=[TensorSpec("x", "text", (-1,))]), "dtype must be bytes or NumPy's name"),
        (Pipeline([Softmax()], inputs=[TensorSpec("x", "bytes", ())]), "shape must begin with -1"),
    ],
)
def test_steps_that_do_not_fit_model_are_rejected(pipeline: Pipeline, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        bind_transform(pipeline, SCORES, "a transform")
    assert str(raised.value).startswith("a transform: ")


def test_specs_are_inferred_from_steps() -> None:
    pipeline = Pipeline(
        [DecodeImage(), Resize((9, 9)), CenterCrop((8, 8)), Normalize([0.5] * 3, 1)],
        [Softmax(), TopK(2, ["a", "b", "c", "d"])],
    )
    bound = bind_transform(pipeline, SCORES, "x")
    assert bound.inputs == (TensorSpec("image", "bytes", (-1,)),)
    assert bound.outputs == (
        TensorSpec("classes", "bytes", (-1, 2)),
        TensorSpec("scores", "float32", (-1, 2)),
    )
    example = pipeline.make_example(SCORES)
    assert example is not None
    assert bound.run_preprocess(example)["image"].shape == (2, 3, 8, 8)
    resized = bind_transform(Pipeline([Resize((8, 8))]), SCORES, "x")
    assert resized.inputs == (TensorSpec("image", "float32", (-1, 3, -1, -1)),)


def test_steps_of_several_inputs() -> None:
    signature = Signature(
        (TensorSpec("image", "float32", (-1, 3, 4, 4)), TensorSpec("age", "float32", (-1, 1))),
        (TensorSpec("output", "float32", (-1, 4)),),
        "2.9.0",
    )
    pipeline = Pipeline([DecodeImage(column="image"), Resize((4, 4), column="image"), Normalize(40, 10, column="age")])
    bound = bind_transform(pipeline, signature, "x")
    assert [(spec.name, spec.dtype) for spec in bound.inputs] == [("image", "bytes"), ("age", "float32")]
    files = fill_objects([encode(make_pixels(5, 6)), encode(make_pixels(3, 3))])
    ages = np.array([[50], [20]], np.float32)
    found = bound.run_preprocess({"image": files, "age": ages})
    assert found["age"].tolist() == [[1], [-2]]


@pytest.mark.parametrize(
    ("lowercase", "words"),
    [
        (True, ["it's", "a", "film", "don\u2019t", "miss", "100", "été"]),
        (False, ["It's", "a", "Film", "Don\u2019t", "miss", "100", "Été"]),
        (None, ["it's", "a", "film,", "don\u2019t", "miss!", "(100%)", "'été'"]),
    ],
)
def test_words_of_text(lowercase: bool | None, words: list[str]) -> None:
    step = Tokenize(9, "words", lowercase=lowercase)
    assert list(step.split("It's a Film, Don\u2019t  miss! (100%) 'Été'".encode())) == words


def test_unknown_tokens_are_counted() -> None:
    step = Tokenize(4, "words", ["good"], lowercase=True)
    assert step.count_unknown(fill_objects([b"Good film.", b"", b"bad, good"])) == (2, 4)
