"""A contrastive training in data parallel: two towers over pairs, whose batches two workers cannot share equally."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kfp_mindspore import training

import mindspore as ms  # isort: skip
from mindspore import Tensor, nn  # isort: skip

ROOT, LOSS = Path(sys.argv[1]), sys.argv[2]
BATCH = 9


def main() -> None:
    from kfp_mindspore.transform.values import Normalize
    from kfp_mindspore.vision.contrastive import DualNetwork, PixelTower

    worker = training.init_distributed()
    random = np.random.default_rng(5)
    weights = {name: random.normal(0, 0.3, (8, size)).astype(np.float32) for name, size in (("i", 48), ("t", 12))}
    tower = nn.SequentialCell(nn.Flatten(), nn.Dense(48, 8, Tensor(weights["i"])))
    network = DualNetwork(
        PixelTower(tower, Normalize([0.5] * 3, [0.5] * 3)),
        nn.Dense(12, 8, Tensor(weights["t"])),
        scale=2.0,
        bias=-1.0 if LOSS == "sigmoid" else None,
        batch_size=BATCH,
        worker=worker,
    )
    groups = random.integers(0, 12, 45).astype(np.float32)
    texts = random.normal(size=(12, 12)).astype(np.float32)
    pixels = random.integers(0, 256, (45, 3, 4, 4), np.uint8)
    arrays = {"image": pixels, "text": texts[groups.astype(int)], "group": groups}
    held = ms.dataset.NumpySlicesDataset({name: array[:BATCH] for name, array in arrays.items()}, shuffle=False)
    result = training.fit(
        network,
        arrays,
        optimizer=nn.SGD(network.trainable_params(), 0.1),
        validation=held.batch(BATCH),
        config=training.TrainingConfig(epochs=3, batch_size=BATCH, export_check="off"),
    )
    trained = np.concatenate([parameter.asnumpy().ravel() for parameter in network.trainable_params()])
    losses = [result.metrics["loss"], result.metrics["eval_loss"]]
    np.savez(ROOT / f"{worker.rank}-of-{worker.size}.npz", weights=trained, losses=losses)


if __name__ == "__main__":
    main()
