"""`fit`: the semantics of Model.fit in GRAPH mode over NumPy slices, with checkpoints, resume and data parallelism."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.compat.onednn import avoid_slow_convolutions, has_convolutions
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.mindir.environment import import_mindspore, use_graph_mode
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, OUTPUT_VARIABLE
from kfp_mindspore.training import distributed
from kfp_mindspore.training.signals import Termination

if TYPE_CHECKING:
    from kfp_mindspore.training.data import Augment

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitResult:
    """Result of a training.

    Args:
        epochs: Number of epochs done, those before a resume included.
        steps: Number of optimizer steps done, likewise.
        stopped_early: Whether a callback requested a stop before the last epoch.
        metrics: Of the final weights: `loss` (training, last epoch), `eval_loss` and the validation metrics.
        history: One record per epoch, as in metrics.jsonl.
        checkpoint: The final checkpoint, `<output_dir>/checkpoint`; None without an output directory.
        resumed_from: The checkpoint that training was resumed from, or None.
        seconds: Wall-clock time of this call.
    """

    epochs: int
    steps: int
    stopped_early: bool
    metrics: Mapping[str, float]
    history: Sequence[Mapping[str, Any]]
    checkpoint: Path | None
    resumed_from: Path | None
    seconds: float


def set_seed(seed: int) -> None:
    """Set the seeds of Python's `random`, NumPy and MindSpore; call it before the network is built.

    Args:
        seed: 0 to 2³² - 1.
    """
    random.seed(seed)
    import_mindspore().set_seed(seed)


def fit(
    network: Any,
    train: Any = None,
    *,
    loss: Any = None,
    optimizer: Any,
    epochs: int,
    validation: Any = None,
    metrics: Mapping[str, Any] | Iterable[str] | None = None,
    callbacks: Any = (),
    batch_size: int = 32,
    seed: int = 42,
    augment: Augment | None = None,
    shuffle: bool = True,
    validation_epochs: int = 1,
    checkpoint_dir: Path | str | None = None,
    checkpoint_epochs: int = 1,
    keep_checkpoints: int = 3,
    output_dir: Path | str | None = None,
    network_factory: str | None = None,
    network_arguments: Mapping[str, Any] | None = None,
    verbose: bool = True,
) -> FitResult:
    """Train a network as mindspore.train.Model.fit does, in GRAPH mode.

    When `checkpoint_dir` holds an intact checkpoint, training resumes from it with the result of an uninterrupted run
    (except for operators that draw random numbers inside the network, such as Dropout). On SIGTERM the current step
    is finished, a checkpoint is written and the process exits with code 143. When MS_ROLE is set, the workers train
    in data parallel: each step's batch is divided among them, so that N workers compute what one does.

    Args:
        network: The network, a mindspore.nn.Cell; call `set_seed` before it is built to fix its initial weights.
        train: (features, labels) arrays, {"features": …, "labels": …}, a kfp_mindspore.formats.dataset.Dataset or its
            directory (its split `train`), or None for the directory in KFP_MINDSPORE_DATASET_DIR. Features float32
            of shape (N, …), labels of shape (N,) or (N, …). A batched mindspore.dataset object works too, about half
            as fast; it must restore its own order after a resume, and shard itself.
        loss: Loss function of (outputs, labels); None when the network returns the loss itself.
        optimizer: The optimizer over `network.trainable_params()`.
        epochs: Total number of epochs, those before a resume included.
        validation: In the same forms; by default the split `validation` of a dataset given for `train`.
        metrics: mindspore.train metrics by name, or names such as ("accuracy",), over the validation set.
        callbacks: mindspore.train.Callback objects, of MindSpore or of your own, as for Model.fit.
        batch_size: Samples per step, over all workers.
        seed: Seed of shuffling and augmentation.
        augment: Function (features of a batch, numpy Generator) → features of the same shape and dtype.
        shuffle: Whether to shuffle arrays each epoch.
        validation_epochs: Epochs between validations; the last epoch is always validated.
        checkpoint_dir: Directory of checkpoints; default KFP_MINDSPORE_CHECKPOINT_DIR, without which none are written.
        checkpoint_epochs: Epochs between checkpoints; the last epoch always has one.
        keep_checkpoints: Number of newest checkpoints to keep.
        output_dir: Directory of metrics.jsonl and the final `checkpoint`; default KFP_MINDSPORE_OUTPUT_DIR.
        network_factory: `module:callable` that builds the network for export; by default its class.
        network_arguments: The callable's keyword arguments, JSON types.
        verbose: Whether to print a line per epoch.

    Returns:
        The result.

    Raises:
        UserError: An argument is wrong, the data do not fit, or a checkpoint is of another network.
        KfpMindSporeError: The loss is no longer finite.
        SystemExit: With code 143 on SIGTERM, and with 0 in the scheduler's role.
    """
    begun = time.perf_counter()
    _check_numbers(
        epochs=epochs,
        batch_size=batch_size,
        validation_epochs=validation_epochs,
        checkpoint_epochs=checkpoint_epochs,
        keep_checkpoints=keep_checkpoints,
    )
    import_mindspore()
    worker = distributed.init_distributed()
    # These modules import mindspore.
    from kfp_mindspore.training import data, state
    from kfp_mindspore.training.run import Run, TrainingConfig

    if has_convolutions(type(cell).__name__ for _, cell in network.cells_and_names()):
        avoid_slow_convolutions()
    set_seed(seed)
    config = TrainingConfig(
        epochs=epochs,
        seed=seed,
        validation_epochs=validation_epochs,
        checkpoint_dir=_resolve_directory(checkpoint_dir, CHECKPOINT_VARIABLE),
        checkpoint_epochs=checkpoint_epochs,
        keep_checkpoints=keep_checkpoints,
        output_dir=_resolve_directory(output_dir, OUTPUT_VARIABLE),
        network=state.describe_network(network, network_factory, network_arguments),
        verbose=verbose and worker.is_writer,
    )
    if config.output_dir is not None and not config.network.factory and worker.is_writer:
        _logger.warning("the network's class cannot be imported by name: set network_factory=… to export it later")
    with use_graph_mode(), events.span("training.fit"), Termination() as termination:
        source = data.resolve_train(
            train, batch_size=batch_size, seed=seed, worker=worker, augment=augment, shuffle=shuffle
        )
        run = Run(
            config,
            network=network,
            loss=loss,
            optimizer=optimizer,
            source=source,
            validation=data.resolve_validation(validation, train),
            metrics=metrics,
            callbacks=callbacks,
            worker=worker,
            termination=termination,
        )
        run.start()
        run.train()
        final = run.finish()
    return FitResult(
        epochs=run.epoch,
        steps=run.step,
        stopped_early=run.stopped and run.epoch < epochs,
        metrics=run.metrics,
        history=run.history.records,
        checkpoint=final,
        resumed_from=run.resumed_from,
        seconds=time.perf_counter() - begun,
    )


def _check_numbers(**numbers: int) -> None:
    errors = [f"{name}: must be at least 1, got {value}" for name, value in numbers.items() if value < 1]
    if errors:
        raise ValidationError(errors, subject="fit")


def _resolve_directory(given: Path | str | None, variable: str) -> Path | None:
    value = given or os.environ.get(variable)
    return Path(value).expanduser().absolute() if value else None
