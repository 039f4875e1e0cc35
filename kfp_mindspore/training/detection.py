"""The loss and the augmentation for detectors: Hungarian matching, classes, L1 and generalised overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.detection import compute_overlap, to_corners

_CLASS, _DISTANCE, _OVERLAP = 1.0, 5.0, 2.0
# Less of a box's area than this is left after a crop: it is no longer a box.
_VISIBLE = 0.3
# The part of a box's sides that is its middle, and the weight of a patch that is in none.
_MIDDLE, _NO_PATCH = 0.7, 0.3


class DetectionLoss(nn.Cell):  # type: ignore[misc]
    """DETR's loss (Carion et al., 2020, arXiv:2005.12872, equations 1 and 2), which YOLOS uses too.

    Cross-entropy of the classes, 5 times the L1 distance and 2 times 1 - GIoU (Rezatofighi et al., 2019,
    arXiv:1902.09630) of boxes that `match` has assigned. DETR divides by a batch's boxes; here by their mean number, so
    that the loss is a mean over pictures and the same for one worker and several.

    `anchors` and `patches` let a network without a pretrained backbone learn from few pictures. A query is matched
    rather with boxes near its anchor. Outputs of patches, which precede the queries' in training, have a loss too (as
    Tian et al., 2019, arXiv:1904.01355): a patch in the middle of a box is to find that box, the others nothing.

    Args:
        mean_boxes: Boxes of a training picture on average; less than 1 counts as 1.
        no_object: Weight of a query without a box in the cross-entropy.
        anchors: The queries' places, x and y, 0 to 1, shape (Q, 2); None for none.
        patches: The patches' centres, shape (P, 2), with `anchors` only; None if they have no outputs.
    """

    def __init__(
        self,
        mean_boxes: float,
        no_object: float = 0.1,
        anchors: NDArray[Any] | None = None,
        patches: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.mean_boxes = max(float(mean_boxes), 1.0)
        self.no_object = no_object
        self.anchors, self.patches = anchors, patches
        self.queries = 0 if anchors is None else len(anchors)

    def match(self, outputs: tuple[NDArray[Any], NDArray[Any]], target: NDArray[Any]) -> NDArray[np.float32]:
        """Return each output's class and box, float32 (N, P + Q, 5), with class -1 for no object.

        Patches have the box whose middle they are in, queries the Hungarian method's.

        Args:
            outputs: Logits (N, P + Q, classes + 1) and boxes (N, P + Q, 4); in an evaluation without patches, P = 0.
            target: Class and box (N, M, 5), rows with a class below 0 do not count.

        Raises:
            UserError: A picture has more boxes than queries, or the outputs are not finite.
        """
        logits, boxes = (np.asarray(output, np.float64) for output in outputs)
        if not (np.isfinite(logits).all() and np.isfinite(boxes).all()):
            raise UserError(
                "loss: the network's outputs are not finite, so that boxes cannot be matched",
                hint="Lower the learning rate, or set clip_norm. Earlier checkpoints are intact.",
            )
        probabilities = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        count, total = boxes.shape[:2]
        queries = self.queries or total
        matched = np.full((count, total, 5), 0.5, np.float32)
        matched[..., 0] = -1
        for index in range(count):
            wanted = target[index][target[index, :, 0] >= 0].astype(np.float64)
            if len(wanted) > queries:
                raise UserError(
                    f"loss: a picture has {len(wanted)} boxes, the network has {queries} queries",
                    hint="Build the network with more queries.",
                )
            if not len(wanted):
                continue
            found = boxes[index, -queries:]
            cost = _OVERLAP * (1 - compute_overlap(found, wanted[:, 1:], generalised=True))
            cost += _DISTANCE * np.abs(found[:, None] - wanted[None, :, 1:]).sum(-1)
            cost -= _CLASS * probabilities[index, -queries:][:, wanted[:, 0].astype(int)]
            if self.anchors is not None:
                cost += _DISTANCE * np.abs(self.anchors[:, None] - wanted[None, :, 1:3]).sum(-1)
            rows, columns = linear_sum_assignment(cost)
            matched[index, total - queries + rows] = wanted[columns]
            if self.patches is not None and total > queries:
                places = (np.abs(self.patches[:, None] - wanted[None, :, 1:3]) / wanted[None, :, 3:]).max(-1)
                nearest = places.argmin(1)
                inside = places.min(1) < _MIDDLE / 2
                matched[index, : total - queries][inside] = wanted[nearest[inside]]
        return matched

    def construct(self, outputs, target):  # type: ignore[no-untyped-def]
        """Return the loss for outputs and matched targets (N, P + Q, 5), shape ()."""
        logits, boxes = outputs
        total, none = logits.shape[1], logits.shape[2] - 1
        queries = self.queries if self.queries else total
        found = ops.cast(target[..., 0] >= 0, mstype.float32)
        labels = ops.cast(found * target[..., 0] + (1.0 - found) * none, mstype.int32)
        logs = ops.log_softmax(ops.cast(logits, mstype.float32), -1)
        entropy = -ops.gather_elements(logs, 2, ops.expand_dims(labels, -1))[..., 0]
        boxes = ops.cast(boxes, mstype.float32)
        distance = ops.abs(boxes - target[..., 1:]).sum(-1)
        overlap = 1.0 - self._overlap(boxes, target[..., 1:])  # type: ignore[no-untyped-call]
        regression = found * (_DISTANCE * distance + _OVERLAP * overlap)
        weights = found + self.no_object * (1.0 - found)
        share = self.no_object * queries + (1.0 - self.no_object) * self.mean_boxes
        entropies, regressions = weights * entropy, regression
        if queries < total:
            entropies, regressions = entropies[:, -queries:], regression[:, -queries:]
        loss = _CLASS * entropies.sum(-1) / share + regressions.sum(-1) / self.mean_boxes
        if queries < total:
            found = found[:, :-queries]
            weights = found + _NO_PATCH * (1.0 - found)
            loss = loss + _CLASS * (weights * entropy[:, :-queries]).sum(-1) / weights.sum(-1)
            loss = loss + regression[:, :-queries].sum(-1) / (found.sum(-1) + 1.0)
        return ops.mean(loss)

    def _overlap(self, boxes, target):  # type: ignore[no-untyped-def]
        """Return the generalised intersection over union, (N, Q)."""
        low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
        other_low, other_high = target[..., :2] - target[..., 2:] / 2, target[..., :2] + target[..., 2:] / 2
        sides = ops.relu(ops.minimum(high, other_high) - ops.maximum(low, other_low))
        shared = sides[..., 0] * sides[..., 1]
        union = boxes[..., 2] * boxes[..., 3] + target[..., 2] * target[..., 3] - shared
        hull = ops.maximum(high, other_high) - ops.minimum(low, other_low)
        area = hull[..., 0] * hull[..., 1]
        return shared / (union + 1e-7) - (area - union) / (area + 1e-7)


def augment_boxes(
    images: NDArray[np.float32], boxes: NDArray[np.float32], generator: np.random.Generator, *, least: float = 0.6
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mirror half the pictures, and crop half of them to a random part in the full size, with their boxes.

    A box of which less than 30 % is left is removed.

    Args:
        images: Shape (N, C, H, W).
        boxes: Class and box, shape (N, M, 5), rows with a class below 0 do not count.
        generator: Random numbers.
        least: Least part of height and width that a crop keeps.

    Returns:
        New arrays with the same shapes.
    """
    images, boxes = images.copy(), boxes.copy()
    height, width = images.shape[2:]
    mirrored = generator.random(len(images)) < 0.5
    images[mirrored] = images[mirrored, :, :, ::-1]
    boxes[mirrored, :, 1] = 1 - boxes[mirrored, :, 1]
    for index in np.flatnonzero(generator.random(len(images)) < 0.5):
        size = generator.uniform(least, 1, 2)
        start = generator.uniform(0, 1 - size)
        # The nearest pixel: fast, and enough for an augmentation.
        places = [
            np.minimum(((start[axis] + (np.arange(side) + 0.5) / side * size[axis]) * side).astype(int), side - 1)
            for axis, side in ((1, height), (0, width))
        ]
        images[index] = images[index][:, places[0][:, None], places[1]]
        corners = to_corners(boxes[index, :, 1:])
        moved = np.clip((corners - np.tile(start, 2)) / np.tile(size, 2), 0, 1)
        sides = moved[:, 2:] - moved[:, :2]
        kept = sides.prod(-1) * size.prod() >= _VISIBLE * boxes[index, :, 3:].prod(-1)
        boxes[index, :, 1:] = np.concatenate([(moved[:, :2] + moved[:, 2:]) / 2, sides], -1)
        boxes[index, ~kept, 0] = -1
    return images, boxes
