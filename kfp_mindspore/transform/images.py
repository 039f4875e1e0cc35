"""Steps for images, as arrays with shape (N, C, H, W)."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import MissingExtraError, UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import TransformInputError, fill_objects, make_shape
from kfp_mindspore.transform.pipeline import Step, keep_float, require_float, stack_rows

_CHANNELS = {"L": 1, "RGB": 3}
_FORMATS = ("JPEG", "PNG")
_FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
# The beginnings of PNG and JPEG files in base64.
_BASE64_MAGIC = (b"iVBORw0KGgo", b"/9j/")
_DATA_URL = b"data:"
# Decoding takes up to 12 bytes per pixel and channel, however small the file is.
_MAX_PIXELS = 1 << 22
# The EXIF tag, and its first value that exchanges height and width.
_ORIENTATION, _SIDEWAYS = 0x0112, 5
# JPEG's limit.
_MAX_SIDE = 65_535
# Pillow's errors for files that are truncated, damaged or in another format.
_DAMAGES = (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error, zlib.error)


class DecodeImage(Step):
    """PNG or JPEG files to float32 with shape (N, C, H, W) with values from 0 to 1.

    Images with different sizes in one request need `resize` with two sides, `crop`, or a following `Resize` or
    `CenterCrop`. An animated image is its first frame. A file may also be base64 text or a data URL, as JSON clients
    send them: no PNG or JPEG file begins like either.

    `resize` and `crop` are computed on the file's 8-bit pixels, as published image processors do it; a following
    `Resize` is computed on float32.

    Args:
        mode: `RGB` (C = 3) or `L`, grey (C = 1); an image in another mode is converted.
        max_pixels: Most pixels (H · W) per image, default 2²²; all images in a request may have four times as many. No
            side may be longer than 65,535. Checked in the file's header, before memory is allocated.
        resize: Height and width, or one number: the shorter side's new length.
        resample: Pillow's filter for `resize`: `nearest`, `box`, `bilinear`, `hamming`, `bicubic` or `lanczos`.
        crop: Height and width of the centre to keep after `resize`; smaller images are padded with zeros.
        rotate: Whether a file's EXIF rotation is applied.
        column: The input; may be left out when there is only one.
    """

    max_rows = 4

    def __init__(
        self,
        mode: str = "RGB",
        *,
        max_pixels: int = _MAX_PIXELS,
        resize: int | Sequence[int] = (),
        resample: str = "bicubic",
        crop: Sequence[int] = (),
        rotate: bool = False,
        column: str = "",
    ) -> None:
        super().__init__(column)
        if mode not in _CHANNELS:
            raise UserError(f"DecodeImage: mode: must be RGB or L, got {mode!r}")
        if resample not in _FILTERS:
            raise UserError(f"DecodeImage: resample: must be one of {', '.join(_FILTERS)}, got {resample!r}")
        self.mode = mode
        self.max_pixels = max_pixels
        self.resize = resize if isinstance(resize, int) else tuple(resize)
        self.resample = resample
        self.crop = tuple(crop)
        self.rotate = rotate
        for name, sides in (("resize", (resize, resize) if isinstance(resize, int) else resize), ("crop", crop)):
            if len(sides) not in (0, 2) or any(type(side) is not int or not 0 < side <= _MAX_SIDE for side in sides):
                raise UserError(f"DecodeImage: {name}: must have sides from 1 to {_MAX_SIDE}, got {sides!r}")

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Decode an array of N `bytes` objects, or uint8 with shape (N, byte count)."""
        return stack_rows([row for row, _ in self.decode(batch)])

    def decode(self, batch: NDArray[Any]) -> list[tuple[NDArray[Any], tuple[int, int]]]:
        """Return each image, float32 with shape (C, H, W), with the height and width that it is shown with."""
        files = [row.tobytes() if isinstance(row, np.ndarray) else bytes(row) for row in batch]
        rows: list[tuple[NDArray[Any], tuple[int, int]]] = []
        left = self.max_rows * self.max_pixels
        for index, content in enumerate(files):
            rows.append(self._decode(content, "image" if len(files) == 1 else f"image of row {index}", left))
            left -= rows[-1][0].shape[1] * rows[-1][0].shape[2]
        return rows

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return bytes, one object a row."""
        fixed = self.crop or (() if isinstance(self.resize, int) else self.resize)
        given = (_CHANNELS[self.mode], *fixed)
        if (
            spec.dtype != "float32"
            or len(spec.shape) != 4
            or any(wanted not in (-1, side) for wanted, side in zip(spec.shape[1:], given, strict=False))
        ):
            sides = ", ".join(map(str, fixed)) or "H, W"
            raise UserError(
                f"DecodeImage: gives float32 of shape (-1, {given[0]}, {sides}), but {spec.name!r} must be "
                f"{spec.dtype} of shape {spec.shape}"
            )
        return TensorSpec(spec.name, BYTES, (spec.shape[0],))

    def make_example(self, spec: TensorSpec) -> NDArray[Any]:
        """Return PNG files with a gradient."""
        rows, _, height, width = make_shape(spec.shape)
        grey = np.linspace(0, 255, height * width).astype(np.uint8).reshape(height, width)
        buffer = io.BytesIO()
        _import_pillow().fromarray(grey).save(buffer, "PNG")
        return fill_objects([buffer.getvalue()] * rows)

    def _decode(self, content: bytes, where: str, left: int) -> tuple[NDArray[Any], tuple[int, int]]:
        images = _import_pillow()
        content = _decode_base64(content)
        try:
            with images.open(io.BytesIO(content), formats=_FORMATS) as image:
                width, height = image.size
                if reason := _describe_excess(image, self.max_pixels):
                    raise TransformInputError(f"{where}: {reason}")
                if width * height > left:
                    raise TransformInputError(
                        f"{where}: all images of a request must have at most {self.max_rows * self.max_pixels} pixels"
                    )
                if self.rotate:
                    _rotate(image)
                shown = image.height, image.width
                # Pillow copies an image that has the mode already.
                pixels = self.arrange(image if image.mode == self.mode else image.convert(self.mode), where)
        except images.DecompressionBombError:
            raise TransformInputError(f"{where}: must have at most {self.max_pixels} pixels, has many more") from None
        except _DAMAGES as error:
            found = f"{len(content)} bytes that cannot be decoded" if content else "no bytes"
            raise TransformInputError(
                f'{where}: must be a whole PNG or JPEG file, in JSON as {{"b64": "…"}}, got {found}'
            ) from error
        planes = pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        scaled: NDArray[Any] = planes.astype(np.float32) / np.float32(255)
        return scaled, shown

    def arrange(self, image: Any, where: str) -> NDArray[np.uint8]:
        """Return a Pillow image's pixels after `resize` and `crop`, uint8 with shape (H, W) or (H, W, C)."""
        images = _import_pillow()
        if self.resize:
            width, height = image.size
            sides = self.resize
            if isinstance(sides, int):
                long = int(sides * max(width, height) / min(width, height))
                sides = (sides, long) if height <= width else (long, sides)
            if sides[0] * sides[1] > self.max_pixels:
                raise TransformInputError(
                    f"{where}: is too narrow: resized to {sides[1]} x {sides[0]} it must have at most "
                    f"{self.max_pixels} pixels, has {width} x {height}"
                )
            image = image.resize(sides[::-1], getattr(images.Resampling, self.resample.upper()))
        pixels: NDArray[np.uint8] = np.asarray(image)
        if self.crop:
            spans = []
            for axis, wanted in enumerate(self.crop):
                missing = max(wanted - pixels.shape[axis], 0)
                # The odd row or column of padding comes first, as in the published processors.
                widths = [(0, 0)] * pixels.ndim
                widths[axis] = ((missing + 1) // 2, missing // 2)
                pixels = np.pad(pixels, widths)
                start = (pixels.shape[axis] - wanted) // 2
                spans.append(slice(start, start + wanted))
            pixels = pixels[tuple(spans)]
        return pixels


def _rotate(image: Any) -> None:
    from PIL import ImageOps

    # Otherwise Pillow copies an image that is not rotated.
    ImageOps.exif_transpose(image, in_place=True)


def _describe_excess(image: Any, max_pixels: int) -> str:
    """Return why an image with such a header is refused; empty for one that is decoded."""
    width, height = image.size
    if width * height > max_pixels:
        return f"must have at most {max_pixels} pixels, has {width} x {height}"
    if max(width, height) > _MAX_SIDE:
        return f"must have sides of at most {_MAX_SIDE}, has {width} x {height}"
    if image.mode[0] in "IF":
        return f"must have 8 bits a channel, its mode is {image.mode}"
    return ""


def _decode_base64(content: bytes) -> bytes:
    """Return the file in base64 text or a data URL; other content unchanged."""
    text = content.partition(b",")[2] if content.startswith(_DATA_URL) else content
    if text is content and not content.startswith(_BASE64_MAGIC):
        return content
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return content


def read_shown_size(content: bytes) -> tuple[int, int]:
    """Return an image file's height and width after its EXIF rotation."""
    with _import_pillow().open(io.BytesIO(content)) as image:
        height, width = image.height, image.width
        return (width, height) if image.getexif().get(_ORIENTATION, 1) >= _SIDEWAYS else (height, width)


def check_image(content: bytes, max_pixels: int) -> tuple[int, int, str]:
    """Return height, width and Pillow's mode of a PNG or JPEG file that `DecodeImage` decodes.

    A JPEG is decoded at an eighth of its size, which finds the same damages faster.

    Raises:
        UserError: It is truncated, damaged, in another format or has more pixels.
    """
    images = _import_pillow()
    try:
        with images.open(io.BytesIO(content), formats=_FORMATS) as image:
            (width, height), mode = image.size, str(image.mode)
            if reason := _describe_excess(image, max_pixels):
                raise UserError(
                    reason,
                    hint="Convert it to 8 bits a channel (mogrify -depth 8 FILE), make it smaller (mogrify -resize "
                    "'1600x1600>' FILE), or give steps with DecodeImage(max_pixels=…).",
                )
            image.draft(mode, (1, 1))
            image.load()
    except images.DecompressionBombError:
        raise UserError(f"must have at most {max_pixels} pixels, has many more", hint="Make it smaller.") from None
    except images.UnidentifiedImageError:
        raise UserError(
            f"must be a PNG or JPEG image, got {len(content)} bytes in another format",
            hint="Convert it by an image program, or remove it.",
        ) from None
    except _DAMAGES as error:
        raise UserError(
            f"must be a whole PNG or JPEG image, got {len(content)} bytes that cannot be decoded ({error})",
            hint="Copy it again, or remove it.",
        ) from None
    return height, width, mode


class _FixedSize(Step):
    """Images with any size to images with one size."""

    # Whether the result is a floating type.
    is_float = True

    def __init__(self, size: tuple[int, int], *, column: str = "") -> None:
        super().__init__(column)
        if len(size) != 2 or any(not isinstance(length, int) or length < 1 for length in size):
            raise UserError(f"{type(self).__name__}: size: must be (height, width) of at least 1, got {size!r}")
        self.size = (size[0], size[1])

    def infer_input(self, spec: TensorSpec) -> TensorSpec:
        """Return the same with free height and width."""
        if self.is_float:
            require_float(self, spec)
        if len(spec.shape) < 3 or any(
            wanted not in (-1, given) for wanted, given in zip(spec.shape[-2:], self.size, strict=True)
        ):
            raise UserError(
                f"{type(self).__name__}: gives images of {self.size[0]} x {self.size[1]}, but {spec.name!r} must have "
                f"shape {spec.shape}"
            )
        return dataclasses.replace(spec, shape=(*spec.shape[:-2], -1, -1))


class Resize(_FixedSize):
    """Images to one size, bilinear and antialiased, by Pillow.

    Args:
        size: Height and width.
        column: The input; may be left out when there is only one.
    """

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Resize the last two axes; float32, or the batch's own floating type."""
        height, width = batch.shape[-2:]
        if not height or not width:
            raise TransformInputError(f"image: must have at least one pixel, got {height} x {width}")
        if (height, width) == self.size:
            return batch.astype(keep_float(batch.dtype), copy=False)
        pillow = _import_pillow()
        planes = np.ascontiguousarray(batch, np.float32).reshape(-1, height, width)
        resized = np.empty((len(planes), *self.size), np.float32)
        for index, plane in enumerate(planes):
            image = pillow.fromarray(plane).resize(self.size[::-1], pillow.Resampling.BILINEAR)
            resized[index] = np.asarray(image)
        with np.errstate(over="ignore"):
            return resized.reshape(*batch.shape[:-2], *self.size).astype(keep_float(batch.dtype), copy=False)


class CenterCrop(_FixedSize):
    """Image centres; smaller images are padded with zeros.

    Args:
        size: Height and width.
        column: The input; may be left out when there is only one.
    """

    is_float = False

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Cut or pad the last two axes."""
        result = batch
        for axis, wanted in zip((-2, -1), self.size, strict=True):
            length = result.shape[axis]
            if length > wanted:
                start = (length - wanted) // 2
                result = result.take(range(start, start + wanted), axis)
            elif length < wanted:
                before = (wanted - length) // 2
                widths = [(0, 0)] * result.ndim
                widths[axis] = (before, wanted - length - before)
                result = np.pad(result, widths)
        return result


def _import_pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        raise MissingExtraError("pillow", "serving") from None
    return Image
