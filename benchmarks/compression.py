"""How much smaller and faster is a compressed network, for how many points of accuracy?

A ResNet and the Vision Transformer of the workload `vit` on Fashion-MNIST, each trained by `fit` and cut to half of its
parameters by every method, `random` among them as the control of the scores; beside a smaller network of as many
parameters that is trained from scratch for the epochs of both; and with packed weights. Accuracies are of the test
split; the gate of a compression never saw it. Prints a line a result, and all as JSON on the last line.

`--quick`: one seed, 4,000 images, few epochs. It shows that everything runs, and proves nothing about accuracy.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import build_parser

from kfp_mindspore import training
from kfp_mindspore.compression import CompressionOptions, compress
from kfp_mindspore.data import load_dataset
from kfp_mindspore.mindir import evaluate_bundle, export_mindir
from kfp_mindspore.workloads.vit.network import Network as VisionTransformer

from mindspore import nn, ops  # isort: skip

PRUNED = 0.5
METHODS = ("l1", "bn", "taylor", "scop", "random")
WEIGHTS = ("int8", "slb4", "slb2", "slb1")


class Block(nn.Cell):  # type: ignore[misc]
    """A residual block, with a projection where width or size change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = nn.Conv2d(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def construct(self, values: Any) -> Any:
        """Return the next block's values."""
        found = ops.relu(self.first_norm(self.first(values)))
        return ops.relu(self.second_norm(self.second(found)) + self.skip(values))


class ResNet(nn.Cell):  # type: ignore[misc]
    """Three stages of two blocks.

    Args:
        width: Channels of the first stage; the others have twice and four times as many.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3), nn.BatchNorm2d(width)
        widths = (width, width, 2 * width, 2 * width, 4 * width, 4 * width)
        inputs = (width, *widths[:-1])
        strides = (2, 1, 2, 1, 2, 1)
        self.blocks = nn.SequentialCell(*map(Block, inputs, widths, strides))
        self.classifier = nn.Dense(4 * width, 10)

    def construct(self, image: Any) -> Any:
        """Return the scores for images with shape (N, 1, 28, 28)."""
        return self.classifier(self.blocks(ops.relu(self.norm(self.stem(image)))).mean((2, 3)))


def build_vit(width: int = 64) -> Any:
    """Return the Vision Transformer with a token width."""
    return VisionTransformer(28, 10, width=width)


@dataclass(frozen=True)
class Case:
    """A network: its factory, the whole width, and the width with about half of the parameters."""

    factory: Callable[..., Any]
    width: int
    small: int
    methods: tuple[str, ...]


CASES = {
    "resnet": Case(ResNet, 16, 11, METHODS),
    "vit": Case(build_vit, 64, 44, tuple(method for method in METHODS if method != "bn")),
}


def train(case: Case, width: int, dataset: Path, output: Path, epochs: int, seed: int) -> Path:
    """Train a network and return its checkpoint."""
    training.set_seed(seed)
    network = case.factory(width=width)
    training.fit(
        network,
        dataset,
        loss=nn.CrossEntropyLoss(),
        optimizer=nn.AdamWeightDecay(network.trainable_params(), 3e-3, weight_decay=0.01),
        config=training.TrainingConfig(
            epochs=epochs,
            batch_size=128,
            seed=seed,
            schedule=training.Schedule(name="cosine", end=0.01, warmup_epochs=epochs / 10),
            output_dir=output,
            network_factory=f"compression:{case.factory.__name__}",
            network_arguments={"width": width},
            verbose=False,
        ),
    )
    return output / "checkpoint"


def evaluate(checkpoint: Path, dataset: Path, output: Path) -> float:
    """Export a checkpoint and return its accuracy on the test split."""
    export_mindir(checkpoint, output, dataset_dir=dataset)
    return evaluate_bundle(output, dataset).value


def measure(name: str, dataset: Path, epochs: int, seed: int, *, quick: bool) -> list[dict[str, Any]]:
    """Return a row for the whole network, each method, form of weights, and the small network from scratch."""
    case = CASES[name]
    rows: list[dict[str, Any]] = []
    options = CompressionOptions(
        pruned=PRUNED, rounds=1, epochs=epochs, batch_size=128, max_accuracy_lost=1.0, seed=seed
    )

    def add(variant: str, accuracy: float, **figures: float) -> None:
        rows.append({"network": name, "seed": seed, "variant": variant, "accuracy": round(accuracy, 4), **figures})
        print(rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        whole = train(case, case.width, dataset, root / "whole", epochs, seed)
        add("whole", evaluate(whole, dataset, root / "whole-model"))
        small = train(case, case.small, dataset, root / "scratch", 2 * epochs, seed)
        add("from scratch", evaluate(small, dataset, root / "scratch-model"))
        variants = {method: {"method": method} for method in case.methods}
        variants |= {form: {"weights": form, "pruned": 0, "min_pruned": 0} for form in WEIGHTS}
        if quick:
            variants = {key: variants[key] for key in ("l1", "taylor", "random", "slb4", "slb1")}
        for variant, changes in variants.items():
            result = compress(whole, dataset, root / variant, options, **changes)
            add(
                variant,
                evaluate(result.checkpoint, dataset, root / f"{variant}-model"),
                pruned=round(result.pruned, 3),
                bytes=round(result.after.bytes / result.before.bytes, 3),
                faster=round(result.before.latency[32] / result.after.latency[32], 2),
            )
    return rows


def main() -> None:
    """Run and print the results."""
    parser = build_parser(__doc__ or "")
    options = parser.parse_args()
    seeds = (1,) if options.quick else (1, 2, 3)
    epochs = 4 if options.quick else 20
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        limit = {"limit": 4000} if options.quick else {}
        dataset = load_dataset("fashion_mnist", Path(scratch) / "data", **limit).path
        for name in CASES:
            for seed in seeds:
                rows += measure(name, dataset, epochs, seed, quick=options.quick)
    print(json.dumps({"name": "compression", "rows": rows}))


if __name__ == "__main__":
    main()
