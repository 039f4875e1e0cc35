"""Steps for detectors: pictures of any size to one canvas, and boxes in the pictures' pixels."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.tensors import BYTES, TensorSpec
from kfp_mindspore.transform.base import Arrays, TransformInputError, fill_objects
from kfp_mindspore.transform.images import DecodeImage
from kfp_mindspore.transform.pipeline import Step
from kfp_mindspore.transform.values import Softmax

EXTENT = "extent"
_PARAMETER = "threshold"
# Sides of images that are resized by their shorter side, as YOLOS' published processor cuts them.
_MULTIPLE = 16


class LetterboxImage(DecodeImage):
    """PNG or JPEG files to float32 with shape (N, 3, H, W), resized and padded at the right and bottom to one canvas.

    Beside the images it gives `extent`, float32 with shape (N, 2): the canvas' height and width in the pixels of the
    picture as it is shown, after its EXIF rotation. Boxes relative to the canvas times the extent are boxes in the
    picture.

    Args:
        canvas: H and W.
        shorter: The shorter side's length after resizing; both sides are cut to multiples of 16. 0 to resize an image
            to the largest size that the canvas holds.
        longer: The longer side's greatest length, for `shorter`.
        stretch: Whether an image becomes as large as the canvas without keeping its aspect ratio.
        fill: The padding, 0 to 1 a channel.
        max_pixels: As for `DecodeImage`.
        resample: As for `DecodeImage`.
        column: The input; may be left out when there is only one.
    """

    def __init__(
        self,
        canvas: Sequence[int],
        *,
        shorter: int = 0,
        longer: int = 0,
        stretch: bool = False,
        fill: Sequence[float] = (0.0, 0.0, 0.0),
        max_pixels: int = 1 << 22,
        resample: str = "bilinear",
        column: str = "",
    ) -> None:
        super().__init__(max_pixels=max_pixels, resample=resample, crop=canvas, rotate=True, column=column)
        if not self.crop or len(fill) != 3:
            raise UserError(f"LetterboxImage: must have a canvas of two sides and a fill of three numbers, got {fill}")
        self.canvas, self.shorter, self.longer = self.crop, shorter, longer
        self.stretch, self.fill = stretch, tuple(fill)

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with the images and their extents."""
        column = self.get_column(arrays)
        rows = self.decode(arrays[column])
        sides = [
            [side * whole / part for side, whole, part in zip(self.canvas, shown, row.shape[1:], strict=True)]
            for row, shown in rows
        ]
        return {**arrays, column: self._pad(rows), EXTENT: np.array(sides, np.float32)}

    def compute(self, batch: NDArray[Any]) -> NDArray[Any]:
        """Decode, resize and pad an array of N `bytes` objects, or uint8 with shape (N, byte count)."""
        return self._pad(self.decode(batch))

    def infer_inputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs with bytes for the images, and without their extents."""
        return super().infer_inputs([spec for spec in specs if spec.name != EXTENT])

    def arrange(self, image: Any, where: str) -> NDArray[np.uint8]:
        """Return a Pillow image's pixels after resizing, uint8 with shape (H, W, 3)."""
        from PIL import Image

        height, width = self.resolve_size(image.height, image.width)
        if not height or not width:
            raise TransformInputError(
                f"{where}: is too narrow: resized into {self.canvas[1]} x {self.canvas[0]} it must have at least one "
                f"{'pixel' if not self.shorter else f'block of {_MULTIPLE} pixels'}, has {image.width} x {image.height}"
            )
        filter_ = getattr(Image.Resampling, self.resample.upper())
        pixels: NDArray[np.uint8] = np.asarray(image.resize((width, height), filter_))
        return pixels

    def resolve_size(self, height: int, width: int) -> tuple[int, int]:
        """Return an image's height and width after resizing, 0 where nothing is left.

        The rules and roundings are those of transformers 4.57's YolosImageProcessor.

        Args:
            height: Before resizing.
            width: Likewise.
        """
        if self.stretch:
            return self.canvas[0], self.canvas[1]
        if not self.shorter:
            scale = min(self.canvas[0] / height, self.canvas[1] / width)
            return int(height * scale), int(width * scale)
        least, most = min(height, width), max(height, width)
        exact: float = self.shorter
        side = self.shorter
        if most / least * side > self.longer:
            exact = self.longer * least / most
            side = round(exact)
        if width < height:
            sides = int(exact * height / width), side
        elif height == side:
            sides = height, width
        else:
            sides = side, int(exact * width / height)
        return sides[0] - sides[0] % _MULTIPLE, sides[1] - sides[1] % _MULTIPLE

    def _pad(self, rows: Sequence[tuple[NDArray[Any], tuple[int, int]]]) -> NDArray[Any]:
        fill = np.array(self.fill, np.float32).reshape(1, 3, 1, 1)
        result = np.broadcast_to(fill, (len(rows), 3, *self.canvas)).copy()
        for index, (row, _) in enumerate(rows):
            result[index, :, : row.shape[1], : row.shape[2]] = row
        return result


class SelectBoxes(Step):
    """The boxes whose class is likely enough: `count`, `labels`, `scores` and `boxes` a picture.

    Replaces scores before softmax (N, Q, classes + 1), the last for no object, and boxes (N, Q, 4) with the centre,
    width and height. A picture's boxes come first, in the model's order: `count`, int64 (N,), is their number; `labels`
    are texts (N, Q), `scores` 0 to 1 (N, Q), `boxes` left, top, right and bottom (N, Q, 4). Further entries are empty
    or 0. A request's parameter `threshold` replaces the declared one.

    Args:
        labels: Class names by index.
        threshold: Scores must be greater, 0 to 1.
        logits: The scores' name.
        column: The boxes' name.
    """

    def __init__(
        self, labels: Sequence[str], *, threshold: float = 0.5, logits: str = "logits", column: str = "boxes"
    ) -> None:
        super().__init__(column)
        if isinstance(labels, str) or not labels or not all(isinstance(label, str) for label in labels):
            raise UserError(f"SelectBoxes: labels: must be a list of texts, at least one, got {labels!r}")
        if not _is_share(threshold):
            raise UserError(f"SelectBoxes: threshold: must be 0 to 1, got {threshold!r}")
        self.labels, self.threshold, self.logits = tuple(labels), threshold, logits
        self._texts = fill_objects([*(label.encode() for label in self.labels), b""])

    def adapt(self, parameters: Mapping[str, Any]) -> Step:
        """Return the step with a request's `threshold`."""
        if (value := parameters.get(_PARAMETER)) is None:
            return self
        try:
            # gRPC's parameters have no fractions but as texts.
            threshold = float(value) if isinstance(value, str) else value
        except ValueError:
            threshold = value
        if not _is_share(threshold):
            raise TransformInputError(f"parameters.{_PARAMETER}: must be a number from 0 to 1, got {value!r:.80}")
        adapted = copy.copy(self)
        adapted.threshold = threshold
        return adapted

    def apply(self, arrays: Arrays) -> Arrays:
        """Return the arrays with `count`, `labels`, `scores` and `boxes`."""
        column = self.get_column(arrays)
        shares = Softmax().compute(arrays[self.logits])[..., :-1]
        classes, scores = shares.argmax(-1), shares.max(-1)
        kept = scores > self.threshold
        order = np.argsort(~kept, axis=-1, kind="stable")
        kept, classes, scores = (np.take_along_axis(array, order, -1) for array in (kept, classes, scores))
        middle, size = np.split(np.take_along_axis(arrays[column], order[..., np.newaxis], -2), 2, -1)
        boxes = np.concatenate([middle - size / 2, middle + size / 2], -1)
        others = {name: array for name, array in arrays.items() if name not in (column, self.logits)}
        return {
            "count": kept.sum(-1),
            "labels": self._texts[np.where(kept, classes, len(self.labels))],
            "scores": np.where(kept, scores, 0),
            "boxes": np.where(kept[..., np.newaxis], boxes, 0),
            **others,
        }

    def infer_outputs(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return the specs with those of `count`, `labels`, `scores` and `boxes`."""
        found = {spec.name: spec for spec in specs}
        boxes, logits = found.get(self.get_column(found)), found.get(self.logits)
        if (
            boxes is None
            or logits is None
            or [spec.dtype for spec in (boxes, logits)] != ["float32"] * 2
            or boxes.shape[2:] != (4,)
            or logits.shape != (*boxes.shape[:2], len(self.labels) + 1)
        ):
            raise UserError(
                f"SelectBoxes: must have float32 {self.logits!r} (N, Q, {len(self.labels) + 1}) and {self.column!r} "
                f"(N, Q, 4), got {', '.join(f'{spec.name!r} {spec.shape}' for spec in specs)}"
            )
        selected = (
            TensorSpec("count", "int64", boxes.shape[:1]),
            TensorSpec("labels", BYTES, boxes.shape[:2]),
            TensorSpec("scores", "float32", boxes.shape[:2]),
            TensorSpec("boxes", "float32", boxes.shape),
        )
        return (*selected, *(spec for spec in specs if spec not in (boxes, logits)))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
