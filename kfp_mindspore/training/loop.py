"""`fit`: what Model.fit means, in GRAPH mode over NumPy slices, with checkpoints, resume and data parallelism."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import events
from kfp_mindspore.compat.onednn import avoid_slow_convolutions, has_convolutions
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, OUTPUT_VARIABLE
from kfp_mindspore.training import distributed
from kfp_mindspore.training.environment import import_mindspore, set_seed, use_graph_mode
from kfp_mindspore.training.signals import Termination

if TYPE_CHECKING:
    from kfp_mindspore.training.data import Augment

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FitResult:
    """How a training ended.

    Args:
        epochs: Number of epochs done, those before a resume included.
        steps: Number of optimizer steps done, likewise.
        stopped_early: Whether a callback asked to stop before the last epoch.
        metrics: Of the final weights: `loss` (training, last epoch), `eval_loss` and the validation metrics.
        history: One record an epoch, as in metrics.jsonl.
        checkpoint: The final checkpoint, `<output_dir>/checkpoint`; None without an output directory.
        resumed_from: The checkpoint that training went on from, or None.
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

    When `checkpoint_dir` holds a whole checkpoint, training goes on from it and ends as if it had never been
    interrupted (operators that draw random numbers inside the network, such as Dropout, excepted). On SIGTERM the
    step at work is finished, a checkpoint is written and the process leaves with code 143. When MS_ROLE says so, the
    workers train in data parallel: each step's batch is divided among them, so that N workers do what one does.

    Args:
        network: The network, a mindspore.nn.Cell; call `set_seed` before it is built to fix its initial weights.
        train: (features, labels) arrays, {"features": …, "labels": …}, a kfp_mindspore.formats.dataset.Dataset or its
            directory (its split `train`), or None for the one that KFP_MINDSPORE_DATASET_DIR names. Features float32
            of shape (N, …), labels of shape (N,) or (N, …). A batched mindspore.dataset object works too, about half
            as fast; its order after a resume and its sharding are its own affair.
        loss: Loss function of (outputs, labels); None when the network returns the loss itself.
        optimizer: The optimizer over `network.trainable_params()`.
        epochs: Number of epochs in all, those before a resume included.
        validation: In the same forms; by default the split `validation` of a dataset given for `train`.
        metrics: mindspore.train metrics by name, or names such as ("accuracy",), over the validation set.
        callbacks: mindspore.train.Callback objects, those of MindSpore or own ones, as for Model.fit.
        batch_size: Samples a step, over all workers.
        seed: Seed of shuffling and augmentation.
        augment: Function (features of a batch, numpy Generator) → features of the same shape and dtype.
        shuffle: Whether to shuffle arrays each epoch.
        validation_epochs: Validate after every so many epochs, and after the last.
        checkpoint_dir: Where checkpoints go; by default KFP_MINDSPORE_CHECKPOINT_DIR; none are written without.
        checkpoint_epochs: Write one after every so many epochs, and after the last.
        keep_checkpoints: Number of newest checkpoints to keep.
        output_dir: Where metrics.jsonl and, at the end, `checkpoint` go; by default KFP_MINDSPORE_OUTPUT_DIR.
        network_factory: `module:callable` that builds the network again for export; by default its class.
        network_arguments: The callable's keyword arguments, JSON types.
        verbose: Whether to print a line an epoch.

    Returns:
        How training ended.

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
    # The run is made of MindSpore's classes, so its module is imported only here.
    from kfp_mindspore.training import data, state
    from kfp_mindspore.training.run import Run, TrainingConfig

    if has_convolutions(type(cell).__name__ for _, cell in network.cells_and_names()):
        avoid_slow_convolutions()
    set_seed(seed)
    config = TrainingConfig(
        epochs=epochs,
        seed=seed,
        validation_epochs=validation_epochs,
        checkpoint_dir=_find_directory(checkpoint_dir, CHECKPOINT_VARIABLE),
        checkpoint_epochs=checkpoint_epochs,
        keep_checkpoints=keep_checkpoints,
        output_dir=_find_directory(output_dir, OUTPUT_VARIABLE),
        network=state.describe_network(network, network_factory, network_arguments),
        verbose=verbose and worker.is_writer,
    )
    if config.output_dir is not None and not config.network.factory and worker.is_writer:
        _logger.warning("the network's class cannot be imported elsewhere: give network_factory=… to export it later")
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


def _find_directory(given: Path | str | None, variable: str) -> Path | None:
    value = given or os.environ.get(variable)
    return Path(value).expanduser().absolute() if value else None
