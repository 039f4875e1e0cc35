"""`fit`: Model.fit's semantics in GRAPH mode over NumPy slices, with checkpoints, resume and data parallelism."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore import events, files
from kfp_mindspore.compat.onednn import avoid_slow_convolutions, has_convolutions
from kfp_mindspore.formats.checkpoint import OUTPUT
from kfp_mindspore.mindir.devices import set_deterministic, use_device
from kfp_mindspore.mindir.environment import import_mindspore, use_graph_mode
from kfp_mindspore.outputs import check_output_file, check_replaceable, has_mark
from kfp_mindspore.settings import CHECKPOINT_VARIABLE, CPU, DATASET_VARIABLE, METRICS_FILE, OUTPUT_VARIABLE
from kfp_mindspore.tracking.trackers import Trackers, open_trackers
from kfp_mindspore.training import distributed, parallel
from kfp_mindspore.training.config import DATA_PARALLEL, TrainingConfig
from kfp_mindspore.training.workers import watchdog
from kfp_mindspore.training.workers.signals import Termination

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class FitResult:
    """Training result.

    Args:
        epochs: Epochs done, those before a resume included.
        steps: Optimizer steps done, likewise.
        stopped_early: Whether a callback requested a stop before the last epoch.
        metrics: For the final weights: `loss` (training, last epoch), `eval_loss` and the validation metrics.
        history: One record per epoch, as in metrics.jsonl.
        checkpoint: The final checkpoint, `<output_dir>/checkpoint`; None without an output directory.
        resumed_from: Path or URI from which training was resumed, or None.
        seconds: This call's wall-clock time.
        best_epoch: Epoch of the final weights with `keep_best`, otherwise None.
    """

    epochs: int
    steps: int
    stopped_early: bool
    metrics: Mapping[str, float]
    history: Sequence[Mapping[str, Any]]
    checkpoint: Path | None
    resumed_from: Path | str | None
    seconds: float
    best_epoch: int | None = None

    def __repr__(self) -> str:
        """Return one line without the history."""
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        parts = [f"epochs={self.epochs}", f"steps={self.steps}", metrics, f"seconds={self.seconds:.1f}"]
        parts += ["stopped_early=True"] if self.stopped_early else []
        parts += [f"checkpoint='{self.checkpoint}'"] if self.checkpoint is not None else []
        return f"FitResult({', '.join(part for part in parts if part)})"


def set_seed(seed: int) -> None:
    """Set the seeds for Python's `random`, NumPy and MindSpore; call it before the network is built.

    Args:
        seed: 0 to 2³² - 1.
    """
    random.seed(seed)
    import_mindspore().set_seed(seed)


@watchdog.watch()
def fit(
    network: Any,
    data: Any = None,
    *,
    loss: Any = None,
    optimizer: Any,
    validation: Any = None,
    callbacks: Any = (),
    config: TrainingConfig | None = None,
) -> FitResult:
    """Train a network as mindspore.train.Model.fit does, in GRAPH mode.

    When the checkpoint directory holds an intact checkpoint, training resumes from it with an uninterrupted run's
    result (except for operators other than nn.Dropout that draw random numbers inside the network). On SIGTERM the
    current step is finished, a checkpoint is written and the process exits with code 143. When MS_ROLE is set, the
    workers train in data parallel: each step's batch is divided among them, so that N workers compute what one does.

    Args:
        network: The network, a mindspore.nn.Cell; call `set_seed` before it is built to fix the initial weights. It
            has one input or several, and returns a tensor, a tuple or a dict of tensors.
        data: The training samples: (inputs, targets) or (inputs, targets, weights), where inputs and targets are an
            array with shape (N, …), a tuple or a dict of arrays; a dict with the inputs by name, `labels` or `target`,
            and optionally `weight`; a pandas DataFrame with such columns; a Dataset or its directory (its split
            `train`); a batched mindspore.dataset object, about half as fast, which must restore its own order after a
            resume and shard itself; or None for the directory in KFP_MINDSPORE_DATASET_DIR. Several inputs are matched
            with the network's `construct` parameters by name. 64-bit numbers become 32-bit ones, other dtypes are kept.
            A sample's loss is multiplied by the weight before the mean is computed.
        loss: Loss function with arguments (outputs, *targets); a dict of functions (output, target) by output and
            target name, whose results are added; or None when the network returns the loss itself.
        optimizer: The optimizer over `network.trainable_params()`.
        validation: In the same forms; by default the split `validation` in a dataset given for `data`.
        callbacks: mindspore.train.Callback objects, MindSpore's or your own, as for Model.fit.
        config: Everything else, by default TrainingConfig().

    Returns:
        The result.

    Raises:
        UserError: An argument is wrong, the device is not there, the data do not fit, a checkpoint belongs to another
            network, or `<output_dir>/checkpoint` has other content.
        KfpMindSporeError: The loss is no longer finite.
        SystemExit: With code 143 on SIGTERM, and with 0 in the scheduler's role. A job member's process ends with code
            76 when no step completes for KFP_MINDSPORE_HANG_SECONDS.
    """
    begun = time.perf_counter()
    config = TrainingConfig() if config is None else config
    import_mindspore()
    # These modules import mindspore.
    from kfp_mindspore.training.callbacks import CallbackList
    from kfp_mindspore.training.checkpoints import state
    from kfp_mindspore.training.checkpoints.checkpointing import Checkpointer, take_session
    from kfp_mindspore.training.checks import arguments as checks
    from kfp_mindspore.training.run import Run
    from kfp_mindspore.training.samples import data as sources

    checks.check_objects(network, loss, optimizer, config)
    device = use_device(config.device, config.device_id)
    if config.deterministic:
        set_deterministic()
    worker = distributed.init_distributed()
    if device == CPU and has_convolutions(type(cell).__name__ for _, cell in network.cells_and_names()):
        avoid_slow_convolutions()
    set_seed(config.seed)
    config = dataclasses.replace(
        config,
        checkpoint_dir=_resolve_location(config.checkpoint_dir, CHECKPOINT_VARIABLE),
        output_dir=_resolve_location(config.output_dir, OUTPUT_VARIABLE),
        verbose=config.verbose and worker.is_writer,
    )
    parts, sharded = worker, None
    if config.parallel_mode != DATA_PARALLEL:
        parallel.set_context(config, worker)
        # A worker's parameters are slices, which MindSpore's callback saves by rank.
        sharded = config if config.checkpoint_dir is not None else None
        parts, config = distributed.WorkerInfo(), dataclasses.replace(config, checkpoint_dir=None, output_dir=None)
    description = state.describe_network(network, config.network_factory, config.network_arguments)
    if config.output_dir is not None and worker.is_writer:
        dataset = os.environ.get(DATASET_VARIABLE) if data is None else data
        read = [given for given in (dataset, config.initial) if isinstance(given, (str, Path))]
        check_replaceable(Path(config.output_dir, "checkpoint"), OUTPUT, read)
        written = Path(config.output_dir, METRICS_FILE)
        check_output_file(written, "a training's metrics", lambda file: has_mark(file, '"epoch": '))
    if config.output_dir is not None and not description.factory and worker.is_writer:
        _logger.warning("the network's class cannot be imported by name: set network_factory=… to export it later")
    has_loss = loss is not None
    location = None if config.checkpoint_dir is None else str(config.checkpoint_dir)
    session = take_session() if parts is worker else None
    with (
        use_graph_mode(),
        events.span("training.fit"),
        Termination() as termination,
        Checkpointer(location, config.keep_checkpoints, is_writer=worker.is_writer, session=session) as checkpoints,
        _open_trackers(config, worker) as trackers,
    ):
        source = sources.resolve_train(data, network, config, parts, has_loss=has_loss)
        if sharded is not None:
            saver = parallel.build_saver(sharded, worker, description, source)
            callbacks = [*CallbackList(callbacks).callbacks, saver]
        run = Run(
            config,
            checkpoints,
            network=network,
            description=description,
            loss=loss,
            optimizer=optimizer,
            source=source,
            validation=sources.resolve_validation(validation, data, network, parts, has_loss=has_loss),
            callbacks=callbacks,
            worker=worker,
            parts=parts,
            termination=termination,
            trackers=trackers,
            exports=_is_exported(config, sharded=parts is not worker, has_loss=has_loss),
        )
        with distributed.exit_if_peer_is_lost(worker, checkpoints.wait):
            run.start()
            run.train()
            final = run.finish()
    done = run.state
    return FitResult(
        epochs=done.epoch,
        steps=done.step,
        stopped_early=done.stopped and done.epoch < config.epochs,
        metrics=done.metrics,
        history=done.history.records,
        checkpoint=final,
        resumed_from=run.resumed_from,
        seconds=time.perf_counter() - begun,
        best_epoch=run.best_epoch,
    )


def _is_exported(config: TrainingConfig, *, sharded: bool, has_loss: bool) -> bool:
    """Return whether to check that the network can be exported, and print why not."""
    reason = ""
    if sharded:
        reason = f"with parallel_mode {config.parallel_mode} a worker has slices of the parameters"
    elif not has_loss:
        reason = "without loss=… the network returns its loss, and another one is exported"
    if reason and config.verbose and config.export_check != "off":
        print(f"export not checked: {reason}", flush=True)
    return not reason and config.output_dir is not None and config.export_check != "off"


def _open_trackers(config: TrainingConfig, worker: distributed.WorkerInfo) -> Trackers:
    if not worker.is_writer:
        return Trackers({})
    locations = [str(item) for item in (config.checkpoint_dir, config.output_dir) if item is not None]
    # Event files are appended to, which object stores do not offer.
    local = next((item for item in locations if "://" not in item), None)
    return open_trackers(
        config.trackers,
        None if local is None else Path(local) / "tensorboard",
        None if config.checkpoint_dir is None else locations[0],
    )


def _resolve_location(given: Path | str | None, variable: str) -> str | None:
    value = given or os.environ.get(variable)
    return files.resolve_location(value) if value else None
