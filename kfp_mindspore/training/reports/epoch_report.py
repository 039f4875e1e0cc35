"""An epoch report: a record for metrics.jsonl, a text line, and a warning about a slow worker."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.training.checkpoints.state import TrainingState
from kfp_mindspore.training.distributed import compute_straggler
from kfp_mindspore.training.samples.data import Source

_logger = logging.getLogger(__name__)


def build_record(
    state: TrainingState, source: Source, *, rate: Any, samples: int, seconds: float, rank_seconds: Sequence[float]
) -> dict[str, Any]:
    """Return the present epoch's record without the evaluation.

    Args:
        state: After the epoch's last step.
        source: The samples.
        rate: The last step's learning rate; a list for parameter groups.
        samples: All workers' samples in `seconds`.
        seconds: Wall-clock time for the steps.
        rank_seconds: Step seconds by rank, without waiting for the others; () where they are not measured.
    """
    record: dict[str, Any] = {
        "epoch": state.epoch + 1,
        "step": state.step,
        "loss": state.loss,
        "learning_rate": rate,
        "samples_per_second": round(samples / seconds, 1),
    }
    if source.layout.tokens:
        record["tokens_per_second"] = round(samples * source.layout.tokens / seconds, 1)
    if rank_seconds:
        record["rank_seconds"] = [round(value, 5) for value in rank_seconds]
    return record


def warn_about_straggler(record: Mapping[str, Any]) -> None:
    """Log a warning that names an epoch's slow worker, if there is one."""
    seconds = record.get("rank_seconds", [])
    if seconds and (slow := compute_straggler(seconds)) is not None:
        _logger.warning(
            "epoch %d: worker %d is slow: %.4f s a step without waiting, the median of the others is %.4f s",
            record["epoch"],
            slow,
            seconds[slow],
            statistics.median(seconds[:slow] + seconds[slow + 1 :]),
        )


def describe_epoch(record: Mapping[str, Any], epochs: int) -> str:
    """Return an epoch's record as a text line.

    Args:
        record: From `fit`.
        epochs: Total epochs.
    """
    validation = "".join(
        f", {name} {value:.4f}" for name, value in record.get("validation", {}).items() if isinstance(value, float)
    )
    unit = "tokens" if "tokens_per_second" in record else "samples"
    seconds = ", ".join(f"{name} {value:.2f}" for name, value in record["seconds"].items() if value >= 0.005)
    return (
        f"epoch {record['epoch']}/{epochs}: loss {record['loss']:.4f}{validation}, "
        f"{record[f'{unit}_per_second']:.0f} {unit}/s" + (f" (seconds: {seconds})" if seconds else "")
    )
