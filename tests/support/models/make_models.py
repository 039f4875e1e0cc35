"""Makes a dataset, a checkpoint and real bundles in a directory: `python make_models.py DIRECTORY`.

The classifier's one layer is solved by least squares: a true model of digits without a training run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mindspore
import numpy as np
import small_networks
from visits import CITIES, LENGTH, make_visits

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.formats.checkpoint import NetworkSpec, write_checkpoint
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.mindir import export_mindir
from kfp_mindspore.transform import Concatenate, OneHot, Pad

TOKENS = {
    "tokens": {"inputs": {"ids": 1, "mask": 1}, "outputs": {"output": 1}, "sizes": [16, 32, 64], "pad": {"ids": 0}}
}
KEY = bytes(range(32))


def main(root: Path) -> None:
    dataset = load_dataset("digits", root / "dataset")
    train = read_samples(dataset, "train")
    features, labels = train.inputs["image"], train.target
    flat = np.hstack([features.reshape(len(features), -1), np.ones((len(features), 1), np.float32)])
    solution = np.linalg.lstsq(flat, np.eye(10, dtype=np.float32)[labels], rcond=None)[0]
    network = small_networks.make_classifier()
    network.dense.weight.set_data(mindspore.Tensor(solution[:-1].T.astype(np.float32)))
    network.dense.bias.set_data(mindspore.Tensor(solution[-1].astype(np.float32)))
    write(root / "checkpoint", network, NetworkSpec("small_networks:make_classifier", {"classes": 10}), dataset)
    export_mindir(root / "checkpoint", root / "raw", dataset_dir=root / "dataset")
    export_mindir(root / "checkpoint", root / "free", dataset_dir=root / "dataset", transform="none")
    export_mindir(root / "checkpoint", root / "fixed", dataset_dir=root / "dataset", transform="none", batch=8)
    write(root / "pair_checkpoint", small_networks.Pair(), NetworkSpec("small_networks:Pair"))
    samples = {"values": np.random.default_rng(1).random((6, 3), np.float32), "index": np.arange(6, dtype=np.int32)}
    export_mindir(root / "pair_checkpoint", root / "pair", samples=samples)
    write(root / "sequence_checkpoint", small_networks.Sequence(), NetworkSpec("small_networks:Sequence"))
    random = np.random.default_rng(2)
    texts = {
        "ids": random.integers(0, 50, (6, 12), np.int32),
        "mask": (np.arange(12) < random.integers(1, 13, (6, 1))).astype(np.float32),
    }
    export_mindir(root / "sequence_checkpoint", root / "sequence", samples=texts, dimensions=TOKENS)
    export_mindir(root / "checkpoint", root / "encrypted", dataset_dir=root / "dataset", transform="none", key=KEY)
    export_mindir(
        root / "checkpoint",
        root / "transformed",
        dataset_dir=root / "dataset",
        transform=Path(__file__).with_name("digits_transform.py"),
    )
    export_visits(root)


def export_visits(root: Path) -> None:
    (root / "visits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_visits()))
    steps = [
        OneHot(CITIES, column="city"),
        Concatenate(["features_numbers", "city"], "features"),
        Pad(LENGTH, side="left", mask="mask", lengths="count", column="tokens"),
    ]
    dataset = load_dataset(str(root / "visits.jsonl"), root / "visits_dataset", preprocessing=steps)
    write(root / "visits_checkpoint", small_networks.Visit(), NetworkSpec("small_networks:Visit"), dataset)
    export_mindir(root / "visits_checkpoint", root / "visits", dataset_dir=dataset.path)


def write(path: Path, network: mindspore.nn.Cell, spec: NetworkSpec, dataset: Dataset | None = None) -> None:
    declaration = None if dataset is None else dataset.preprocessing
    with write_checkpoint(path, epoch=3, step=99, seed=7, network=spec, preprocessing=declaration) as directory:
        mindspore.save_checkpoint(network, str(directory / "network.ckpt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
