"""How much smaller and faster is a compressed network, for how many points of accuracy?

A ResNet and the Vision Transformer of the workload `vit` on Fashion-MNIST, each trained by `fit` and cut to half of its
parameters by every method, `random` among them as the control of the scores; beside a smaller network of as many
parameters that is trained from scratch for the epochs of both; and with packed weights. Accuracies are of the test
split; the gate of a compression never saw it. Prints a line a result, and all as JSON on the last line.

`--quick`: one seed, 4,000 images, few epochs. It shows that everything runs, and proves nothing about accuracy.
`--rows FILE` appends each result to a file and leaves out what the file has, so that hours can be spread over days. The
table of docs/compression.md, with both controls, `random` and `from scratch`, and SLB beside float32 (`whole`):

    python benchmarks/compression.py --images 10000 --epochs 8 --rows compression.jsonl

Start it again after an interruption: only results that the file lacks are computed.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import build_parser

from kfp_mindspore import training
from kfp_mindspore.compression import compress
from kfp_mindspore.compression.options import CompressionOptions
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

    def __init__(self, width: int = 8) -> None:
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
    has_batch_norm: bool


CASES = {
    "resnet": Case(ResNet, 8, 6, has_batch_norm=True),
    "vit": Case(build_vit, 64, 44, has_batch_norm=False),
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


def measure(name: str, dataset: Path, epochs: int, seed: int, variants: Collection[str], rows: Rows) -> None:
    """Add a row for the whole network, for each variant, and for the small network from scratch."""
    case = CASES[name]
    missing = [variant for variant in ("whole", "from scratch", *variants) if not rows.has(name, seed, variant)]
    if not missing:
        return
    options = CompressionOptions(
        pruned=PRUNED, rounds=1, epochs=epochs, batch_size=128, max_accuracy_lost=1.0, seed=seed
    )

    def add(variant: str, accuracy: float, **figures: float) -> None:
        rows.add({"network": name, "seed": seed, "variant": variant, "accuracy": round(accuracy, 4), **figures})

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        whole = train(case, case.width, dataset, root / "whole", epochs, seed)
        if "whole" in missing:
            add("whole", evaluate(whole, dataset, root / "whole-model"))
        if "from scratch" in missing:
            small = train(case, case.small, dataset, root / "scratch", 2 * epochs, seed)
            add("from scratch", evaluate(small, dataset, root / "scratch-model"))
        for variant in variants:
            if variant not in missing or (variant == "bn" and not case.has_batch_norm):
                continue
            packed = {"weights": variant, "pruned": 0, "min_pruned": 0}
            result = compress(
                whole, dataset, root / variant, options, **(packed if variant in WEIGHTS else {"method": variant})
            )
            add(
                variant,
                evaluate(result.checkpoint, dataset, root / f"{variant}-model"),
                pruned=round(result.pruned, 3),
                bytes=round(result.after.bytes / result.before.bytes, 3),
                **{name: round(value, 2) for name, value in dataclasses.asdict(result.speedups[32]).items()},
            )


class Rows:
    """Results, appended to a file as they come.

    Args:
        path: JSON lines of an earlier run, which count as measured; None keeps the results in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.values: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.values = [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def has(self, network: str, seed: int, variant: str) -> bool:
        """Return whether a result is there."""
        return (network, seed, variant) in {(row["network"], row["seed"], row["variant"]) for row in self.values}

    def add(self, row: dict[str, Any]) -> None:
        """Print a result and append it to the file."""
        print(row, flush=True)
        self.values.append(row)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def render_table(self) -> str:
        """Return the accuracies as a Markdown table: the seeds' mean, with their standard deviation."""
        variants = list(dict.fromkeys(row["variant"] for row in self.values))
        lines = [["", *variants], ["---"] * (len(variants) + 1)]
        for network in dict.fromkeys(row["network"] for row in self.values):
            cells = []
            for variant in variants:
                found = [
                    row["accuracy"] for row in self.values if (row["network"], row["variant"]) == (network, variant)
                ]
                spread = f" ± {statistics.stdev(found):.4f}" if len(found) > 1 else ""
                cells.append(f"{statistics.fmean(found):.4f}{spread}" if found else "")
            lines.append([network, *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Run and print the results."""
    parser = build_parser(__doc__ or "")
    parser.add_argument("--images", type=int, default=0, help="images of each split; 0 for all")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of training, and of fine-tuning")
    parser.add_argument("--variants", nargs="+", default=[*METHODS, *WEIGHTS], choices=[*METHODS, *WEIGHTS])
    parser.add_argument("--rows", type=Path, help="file of results, read and appended to")
    options = parser.parse_args()
    if options.quick:
        options.images, options.epochs, options.variants = 4000, 4, ["l1", "taylor", "random", "slb4", "slb1"]
    rows = Rows(options.rows)
    with tempfile.TemporaryDirectory() as scratch:
        dataset = load_dataset("fashion_mnist", Path(scratch) / "data", limit=options.images).path
        for seed in (1,) if options.quick else (1, 2, 3):
            for name in CASES:
                measure(name, dataset, options.epochs, seed, options.variants, rows)
    print(rows.render_table())
    print(json.dumps({"name": "compression", "rows": rows.values}))


if __name__ == "__main__":
    main()
