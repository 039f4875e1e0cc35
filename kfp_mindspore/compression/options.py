"""Compression options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.formats.packed import SEARCHED_BITS
from kfp_mindspore.options import check_options, option

METHODS = ("l1", "bn", "taylor", "scop", "random")
TARGETS = ("parameters", "flops", "latency")
WEIGHTS = ("float32", "float16", "int8", *SEARCHED_BITS)


@dataclass(frozen=True)
class CompressionOptions:
    """Compression options, checked when they are built.

    Args:
        method: Scores by which channels are kept. `l1`: mean absolute weight; `bn`: scale in the BatchNorm behind a
            layer; `taylor`: weight · gradient; `scop`: real features against knock-off ones, for real-valued
            inputs; `random`: a control.
        pruned: Part that is cut in the first round, 0 to below 1. 0 cuts nothing, to pack weights only.
        min_pruned: Least part that later rounds may go back to when the first one loses too much.
        target: What the parts are of. `parameters`; `flops`, multiplications and additions for a sample; or `latency`,
            measured at batch 32.
        max_accuracy_lost: Most that the metric may worsen, in its units.
        metric: The gate's metric; default the task's.
        rounds: Most rounds, each a cut and fine-tuning.
        epochs: Fine-tuning epochs in each round.
        batch_size: Samples per fine-tuning step.
        learning_rate: Fine-tuning's peak learning rate (AdamW, cosine schedule).
        distillation: Weight of the loss between the cut network's outputs and the whole one's, 0 to 1.
        temperature: Divides both networks' logits in it.
        weights: How weights are stored. `float32`, `float16`, `int8` with a scale per channel, or searched low-bit
            weights with 4, 2 or 1 bits (`slb4`, `slb2`, `slb1`).
        seed: Seed for fine-tuning and random scores.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    method: str = option("scop", enum=list(METHODS))
    pruned: float = option(0.5, minimum=0, exclusiveMaximum=1)
    min_pruned: float = option(0.45, minimum=0, exclusiveMaximum=1)
    target: str = option("parameters", enum=list(TARGETS))
    max_accuracy_lost: float = option(0.005, minimum=0)
    metric: str = ""
    rounds: int = option(3, minimum=1)
    epochs: int = option(10, minimum=1)
    batch_size: int = option(64, minimum=1)
    learning_rate: float = option(1e-3, exclusiveMinimum=0)
    distillation: float = option(0.5, minimum=0, maximum=1)
    temperature: float = option(4.0, exclusiveMinimum=0)
    weights: str = option("float32", enum=list(WEIGHTS))
    seed: int = option(0, minimum=0)

    def __post_init__(self) -> None:
        check_options(self, subject="compression")
        if self.min_pruned > self.pruned:
            raise ValidationError(
                [f"min_pruned: must be at most pruned, {self.pruned:g}, got {self.min_pruned:g}"], subject="compression"
            )
        if not self.pruned and self.weights == "float32":
            raise ValidationError(
                ["pruned: must be above 0 unless weights are packed (float16, int8, slb4, slb2, slb1), got 0"],
                subject="compression",
            )


class CompressionChanges(TypedDict, total=False):
    """Fields of `CompressionOptions` by keyword."""

    method: str
    pruned: float
    min_pruned: float
    target: str
    max_accuracy_lost: float
    metric: str
    rounds: int
    epochs: int
    batch_size: int
    learning_rate: float
    distillation: float
    temperature: float
    weights: str
    seed: int
