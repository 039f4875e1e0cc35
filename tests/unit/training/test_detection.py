"""The detection loss, its matching, and the augmentation that moves boxes with pictures."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.errors import UserError
from tests.support.box_folders import write_coco
from tests.support.mindspore_processes import MindSporeProcesses, start_gang

pytestmark = pytest.mark.mindspore

SCRIPT = Path(__file__).with_name("detection_script.py")


def import_detection() -> Any:
    from kfp_mindspore.mindir.environment import import_mindspore

    import_mindspore()
    from kfp_mindspore.training import detection

    return detection


def draw_boxes(generator: np.random.Generator, *shape: int) -> np.ndarray:
    size = generator.uniform(0.1, 0.5, (*shape, 2))
    return np.concatenate([generator.uniform(size / 2, 1 - size / 2), size], -1)


def test_matching_is_the_cheapest_of_all() -> None:
    detection, generator = import_detection(), np.random.default_rng(0)
    logits, boxes = generator.normal(size=(6, 4, 3)), draw_boxes(generator, 6, 4)
    target = np.concatenate([generator.integers(-1, 2, (6, 3, 1)), draw_boxes(generator, 6, 3)], -1)
    matched = detection.DetectionLoss(2.0).match((logits, boxes), target)
    assert (matched.shape, matched.dtype) == ((6, 4, 5), np.float32)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    def overlap(one: np.ndarray, other: np.ndarray) -> float:
        low, high = (
            np.maximum(one[:2] - one[2:] / 2, other[:2] - other[2:] / 2),
            np.minimum(one[:2] + one[2:] / 2, other[:2] + other[2:] / 2),
        )
        shared = np.clip(high - low, 0, None).prod()
        union = one[2:].prod() + other[2:].prod() - shared
        hull = np.maximum(one[:2] + one[2:] / 2, other[:2] + other[2:] / 2) - np.minimum(
            one[:2] - one[2:] / 2, other[:2] - other[2:] / 2
        )
        return float(shared / union - (hull.prod() - union) / hull.prod())

    for index in range(6):
        wanted = target[index][target[index, :, 0] >= 0]

        def cost(queries: tuple[int, ...], wanted: np.ndarray = wanted, index: int = index) -> float:
            return sum(
                -shares[index, query, int(row[0])]
                + 5 * np.abs(boxes[index, query] - row[1:]).sum()
                - 2 * overlap(boxes[index, query], row[1:])
                for query, row in zip(queries, wanted, strict=True)
            )

        found = tuple(
            next(query for query in range(4) if np.allclose(matched[index, query], row, atol=1e-6)) for row in wanted
        )
        assert (matched[index, :, 0] >= 0).sum() == len(wanted)
        assert cost(found) == pytest.approx(min(map(cost, itertools.permutations(range(4), len(wanted)))), abs=1e-5)


def test_loss_is_least_for_true_boxes_and_a_mean_over_pictures() -> None:
    detection, generator = import_detection(), np.random.default_rng(1)
    import mindspore

    loss = detection.DetectionLoss(1.5)
    boxes = draw_boxes(generator, 3, 4).astype(np.float32)
    target = np.concatenate([generator.integers(0, 2, (3, 4, 1)), boxes], -1).astype(np.float32)
    target[0, 2:, 0] = target[2, :, 0] = -1
    labels = np.where(target[..., 0] < 0, 2, target[..., 0]).astype(int)
    sure = (20.0 * np.eye(3)[labels]).astype(np.float32)

    def compute(logits: np.ndarray, found: np.ndarray, rows: Any = slice(None)) -> float:
        given = [mindspore.Tensor(np.ascontiguousarray(array[rows])) for array in (logits, found, target)]
        return float(loss((given[0], given[1]), given[2]).asnumpy())

    assert compute(sure, boxes) == pytest.approx(0, abs=1e-4)
    other = draw_boxes(generator, 3, 4).astype(np.float32)
    assert compute(sure, other) > 0.5
    assert compute(-sure, boxes) > 0.5
    one_by_one = [compute(-sure, other, slice(index, index + 1)) for index in range(3)]
    assert compute(-sure, other) == pytest.approx(np.mean(one_by_one), rel=1e-5)


def test_anchors_and_patches_are_matched_by_place() -> None:
    detection = import_detection()
    import mindspore

    from kfp_mindspore.workloads.detection.network import compute_anchors, compute_places

    anchors, patches = compute_anchors(4), compute_places(4, 4)
    loss = detection.DetectionLoss(1.5, anchors=anchors, patches=patches)
    target = np.array([[[1, 0.75, 0.25, 0.5, 0.5], [0, 0.25, 0.75, 0.2, 0.2], [-1, 0, 0, 0, 0]]])
    # All queries say the same: only their anchors differ.
    alike = np.zeros((1, 20, 3)), np.full((1, 20, 4), 0.5)
    matched = loss.match(alike, target)[0]
    assert matched[16:, 0].tolist() == [-1, 1, 0, -1]
    # The patches whose centres are in the middle of the large box; the small box has none.
    assert np.flatnonzero(matched[:16, 0] >= 0).tolist() == [2, 3, 6, 7]
    np.testing.assert_allclose(matched[2], target[0, 0])
    # An evaluation has outputs of queries only.
    alone = loss.match((alike[0][:, 16:], alike[1][:, 16:]), target)[0]
    np.testing.assert_array_equal(alone, matched[16:])

    def compute(labels: np.ndarray, boxes: np.ndarray, wanted: np.ndarray) -> float:
        logits = (20.0 * np.eye(3)[np.where(labels < 0, 2, labels).astype(int)]).astype(np.float32)
        given = [mindspore.Tensor(array[np.newaxis].astype(np.float32)) for array in (logits, boxes, wanted)]
        return float(loss((given[0], given[1]), given[2]).asnumpy())

    assert compute(matched[:, 0], matched[:, 1:], matched) == pytest.approx(0, abs=1e-4)
    moved = matched[:, 1:].copy()
    moved[2] += 0.1
    assert compute(matched[:, 0], moved, matched) > 0.2
    assert compute(alone[:, 0], alone[:, 1:], alone) == pytest.approx(0, abs=1e-4)


def test_pictures_that_cannot_be_matched_are_refused() -> None:
    detection = import_detection()
    loss = detection.DetectionLoss(1.0)
    target = np.tile(np.array([0, 0.5, 0.5, 0.2, 0.2]), (1, 3, 1))
    with pytest.raises(UserError, match="a picture has 3 boxes, the network has 2 queries"):
        loss.match((np.zeros((1, 2, 3)), np.full((1, 2, 4), 0.5)), target)
    with pytest.raises(UserError, match="outputs are not finite"):
        loss.match((np.full((1, 4, 3), np.nan), np.full((1, 4, 4), 0.5)), target)


def test_task_has_the_loss() -> None:
    detection = import_detection()
    from kfp_mindspore.training.computation.losses import build_task_loss

    assert isinstance(build_task_loss("detection"), detection.DetectionLoss)


@pytest.mark.parametrize("least", [1.0, 0.5])
def test_augmented_boxes_follow_their_forms(least: float) -> None:
    detection, generator = import_detection(), np.random.default_rng(2)
    count, side = 60, 64
    images, boxes = np.zeros((count, 3, side, side), np.float32), np.zeros((count, 2, 5), np.float32)
    boxes[:, 1, 0] = -1
    for index in range(count):
        left, top = generator.integers(0, side - 20, 2)
        width, height = generator.integers(10, 20, 2)
        images[index, :, top : top + height, left : left + width] = 1
        boxes[index, 0, 1:] = np.array([left + width / 2, top + height / 2, width, height]) / side
    kept_images, kept_boxes = images.copy(), boxes.copy()
    moved, found = detection.augment_boxes(images, boxes, generator, least=least)
    assert (images == kept_images).all()
    assert (boxes == kept_boxes).all()
    assert (moved != images).any()
    assert (found[:, 1, 0] == -1).all()
    for image, row in zip(moved[:, 0], found[:, 0], strict=True):
        rows, columns = image.any(1).nonzero()[0], image.any(0).nonzero()[0]
        if row[0] < 0:
            # Less than 30 % of the form is left.
            assert len(rows) * len(columns) < 0.5 * 20 * 20 / least**2
            continue
        edges = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / side
        centre, size = row[1:3], row[3:]
        np.testing.assert_allclose(np.concatenate([centre - size / 2, centre + size / 2]), edges, atol=2.5 / side)


@pytest.mark.slow
def test_two_workers_resumed_frozen_and_restarted_trainings(
    mindspore_processes: MindSporeProcesses, tmp_path: Path
) -> None:
    boxes = [(0, 0, 0, 10, 10), (1, 20, 5, 40, 20)]
    pictures = {name: ((40, 20), boxes[: 1 + index % 2]) for index, name in enumerate("cdefghijklmn")}
    load_dataset(str(write_coco(tmp_path / "given", pictures)), tmp_path / "dataset", image_size=(16, 16))
    environment = {"KFP_MINDSPORE_DATASET_DIR": str(tmp_path / "dataset")}
    alone = mindspore_processes.start([SCRIPT, tmp_path / "1"], tmp_path / "1", environment=environment)
    gang = start_gang(mindspore_processes, [SCRIPT, tmp_path / "2", "plain"], tmp_path / "2", 2, environment)
    outputs = [process.finish(500) for process in (alone, *gang)]
    assert [code for code, _ in outputs] == [0] * 4, outputs[0][1][-4000:] + outputs[1][1][-4000:]
    first, second = (json.loads((tmp_path / name / "results.json").read_text()) for name in "12")
    assert set(first["plain"]["metrics"]) == {"loss", "eval_loss", "map50", "map50_95"}
    assert second["plain"]["metrics"] == pytest.approx(first["plain"]["metrics"], rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(second["plain"]["weights"], first["plain"]["weights"], atol=1e-5)
    assert first["resumed"] == {**first["plain"], "resumed": True}
    assert first["frozen"] == ["classes", "boxes"]
    assert first["head"] == 6
    assert "starting from" in outputs[0][1]
    assert "the network's own values of classes.4.weight" in outputs[0][1]
