"""The contrastive loss alone and over workers, and low-rank updates."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from numpy.typing import NDArray

from kfp_mindspore.lm.network.encoder import EncoderConfig, list_encoder_weights
from kfp_mindspore.lm.network.lora import LoraConfig
from kfp_mindspore.mindir.environment import use_graph_mode
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.vision.contrastive import DualNetwork, copy_weights, prepare_tower
from kfp_mindspore.vision.network import BlockConfig, ImageConfig, ImageNetwork, list_image_weights
from kfp_mindspore.vision.retrieval import measure_retrieval
from kfp_mindspore.vision.text_towers import EncoderTextConfig, build_text_network, list_tower_weights
from tests.support.mindspore_processes import MindSporeProcesses, start_gang

pytestmark = pytest.mark.mindspore

SCRIPT = Path(__file__).with_name("contrastive_script.py")
# MindSpore 2.9 sometimes ends a worker so after its script has finished; files are compared instead.
CRASH_AT_EXIT = -signal.SIGSEGV


def compute_loss(
    images: NDArray[Any], texts: NDArray[Any], groups: NDArray[Any], scale: float, bias: float | None
) -> float:
    """Return the published losses by loops over pairs, with equal texts as further right ones."""
    scores = scale * images.astype(np.float64) @ texts.T.astype(np.float64)
    count = len(groups)
    if bias is not None:
        signs = np.array([[1.0 if one == two else -1.0 for two in groups] for one in groups])
        return float(np.log1p(np.exp(-signs * (scores + bias))).sum() / count)
    losses = []
    for table in (scores, scores.T):
        for row, group in zip(table, groups, strict=True):
            logs = row - np.log(np.exp(row).sum())
            losses.append(-logs[groups == group].mean())
    return float(np.mean(losses))


@pytest.mark.parametrize("bias", [None, -1.5], ids=["infonce", "sigmoid"])
@pytest.mark.parametrize("groups", [[0, 1, 2, 3, 4], [0, 1, 0, 2, 0]], ids=["different", "equal-texts"])
def test_loss_equals_published_formula(bias: float | None, groups: list[int]) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(2, 5, 6)).astype(np.float32)
    images, texts = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    network = DualNetwork(None, None, scale=5.0, bias=bias, batch_size=5, worker=WorkerInfo())
    with use_graph_mode():
        found = network(*(mindspore.Tensor(array) for array in (images, texts, np.array(groups, np.float32))))
    assert float(found.asnumpy().item()) == pytest.approx(
        compute_loss(images, texts, np.array(groups), 5.0, bias), rel=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
def test_two_workers_equal_one(mindspore_processes: MindSporeProcesses, tmp_path: Path, loss: str) -> None:
    single = mindspore_processes.start([SCRIPT, tmp_path, loss], tmp_path)
    results = [
        process.finish() for process in start_gang(mindspore_processes, [SCRIPT, tmp_path, loss], tmp_path, 2, {})
    ]
    results.append(single.finish())
    assert {code for code, _ in results} <= {0, CRASH_AT_EXIT}, "---\n".join(output for _, output in results)
    alone, first, second = (np.load(tmp_path / f"{name}.npz") for name in ("0-of-1", "0-of-2", "1-of-2"))
    assert np.abs(alone["weights"] - first["weights"]).max() < 1e-5
    assert np.array_equal(first["weights"], second["weights"])
    np.testing.assert_allclose(alone["losses"], first["losses"], atol=1e-5)


def fill(shapes: dict[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(1)
    return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


ENCODER = EncoderConfig(20, 8, 2, 2, 12, 9, 2, 9)
IMAGES = ImageConfig(BlockConfig(8, 2, 2, 12, "gelu", 1e-6), (8, 8), 4, outputs=6, normalised=True)
TEXTS = EncoderTextConfig(ENCODER, 5, 0)


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_merged_updates_equal_adapted_tower(kind: str) -> None:
    random = np.random.default_rng(2)
    rows: NDArray[Any]
    if kind == "images":
        cells = [ImageNetwork(IMAGES, fill(list_image_weights(IMAGES))) for _ in range(3)]
        rows = random.normal(size=(3, 3, 8, 8)).astype(np.float32)
    else:
        assert list_tower_weights(TEXTS) == list_encoder_weights(ENCODER)
        cells = [build_text_network(TEXTS, fill(list_tower_weights(TEXTS))) for _ in range(3)]
        rows = np.array([[2, 3, 4, 0, 0], [5, 6, 7, 8, 9], [3, 0, 0, 0, 0]], np.int32)
    tower, merged, unchanged = cells
    prepared = prepare_tower(tower, "lora", LoraConfig(3, 6.0, ("q_proj", "v_proj", "output_proj")), 0)
    assert prepared is tower
    factors = tower.trainable_params()
    assert len(factors) == 2 * 3 * 2
    assert all("lora_" in factor.name for factor in factors)
    for factor in factors:
        factor.set_data(mindspore.Tensor(random.normal(0, 0.3, factor.shape).astype(np.float32)))
    copy_weights(tower, merged)
    with use_graph_mode():
        adapted, found, before = (cell(mindspore.Tensor(rows)).asnumpy() for cell in (tower, merged, unchanged))
    np.testing.assert_allclose(adapted, found, atol=1e-5)
    assert np.abs(found - before).max() > 0.01


def test_retrieval_counts_ties_as_wrong() -> None:
    texts = np.eye(3)
    found = measure_retrieval(np.array([[1, 0, 0], [0.2, 1, 0], [0, 1, 1.0]]), texts, np.array([0, 1, 2]))
    assert found == {"accuracy": 2 / 3, "recall_at_5": 1.0}
    images = np.concatenate([np.tile([0.0, 1.0], (5, 1)), [[1.0, 0.9]]])
    found = measure_retrieval(images, np.array([[0.0, 1.0], [0.0, 0.9]]), np.array([0] * 5 + [1]))
    assert found["recall_at_5"] == 0.5
