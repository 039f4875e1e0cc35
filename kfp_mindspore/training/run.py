"""One training run: the loop over epochs and steps, its checkpoints, resume and reports."""

from __future__ import annotations

import logging
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mindspore.train import RunContext

from kfp_mindspore import events
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, NetworkSpec, name_checkpoint
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.training import distributed, watchdog
from kfp_mindspore.training.callbacks import (
    BestWeights,
    CallbackList,
    CallbackParams,
    build_callbacks,
    copy_callbacks,
    restore_callbacks,
)
from kfp_mindspore.training.checkpointing import RANDOM_FILE, Checkpointer, Snapshot
from kfp_mindspore.training.checks import apply_precision, check_returned_loss
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.data import Source, Validation
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.dropout import count_dropout
from kfp_mindspore.training.evaluator import Evaluator, resolve_metrics
from kfp_mindspore.training.freezing import disable_weight_decay, list_frozen
from kfp_mindspore.training.history import METRICS_FILE, History, describe_epoch, read_history
from kfp_mindspore.training.losses import NetworkWithLoss, build_loss, check_mean
from kfp_mindspore.training.profile import Profile
from kfp_mindspore.training.progress import ProgressReporter
from kfp_mindspore.training.rates import RateSetter
from kfp_mindspore.training.signals import EXIT_CODE, Termination
from kfp_mindspore.training.state import (
    copy_parameters,
    load_parameters,
    read_random_state,
    restore_random_state,
)
from kfp_mindspore.training.steps import Trainer
from kfp_mindspore.training.validation import ValidationLoop

_PROGRESS_SECONDS = 0.5
_logger = logging.getLogger(__name__)


class Run:
    """A run: `start` resumes, `train` loops, `finish` writes the final checkpoint.

    Attributes:
        epoch: Number of epochs completed.
        step: Number of optimizer steps done.
        stopped: Whether a callback requested a stop.
        metrics: Newest metrics by name.
        history: The epochs' records.
        resumed_from: Path or URI of the checkpoint that the run was resumed from, or None.
    """

    def __init__(
        self,
        config: TrainingConfig,
        checkpoints: Checkpointer,
        *,
        network: Any,
        description: NetworkSpec,
        loss: Any,
        optimizer: Any,
        source: Source,
        validation: Validation | None,
        callbacks: Any,
        worker: WorkerInfo,
        parts: WorkerInfo,
        termination: Termination,
    ) -> None:
        self.config = config
        self._checkpoints = checkpoints
        self._output_dir = None if config.output_dir is None else Path(config.output_dir)
        self.epoch = 0
        self.step = 0
        self.stopped = False
        self.metrics: dict[str, float] = {}
        self.resumed_from: Path | str | None = None
        self.history = History(None)
        self._network = network
        self._description = description
        self._preprocessing = source.raw.preprocessing if isinstance(source.raw, Dataset) else {}
        self._optimizer = optimizer
        self._source = source
        self._worker = worker
        # Of the batches: one part for all workers where MindSpore divides them itself.
        self._parts = parts
        self._termination = termination
        counters = count_dropout(network, config.seed, worker.rank)
        mixed = apply_precision(network, config.precision)
        function = None if loss is None else build_loss(loss, source.layout)
        with_loss = mixed if loss is None else NetworkWithLoss(mixed, function, len(source.layout.inputs))
        # Weights of samples replace the reduction by their own mean.
        if parts.size * parts.pieces * config.accumulate > 1 and not source.layout.weighted:
            check_mean(loss)
        self._trainer = Trainer(network, with_loss, optimizer, config, parts, source.layout.names)
        self._further = [*self._trainer.state.parameters, *counters]
        tasks, labels = ({}, ()) if validation is None else (validation.tasks, validation.labels)
        metrics = resolve_metrics(config.metrics, tasks, labels)
        if loss is None and metrics:
            raise UserError("metrics: need loss=…; a network that returns its loss has no outputs to measure")
        self._names = [parameter.name for parameter in optimizer.parameters]
        for epoch in sorted({1, *config.unfreeze}):
            list_frozen(config, self._names, epoch)
        self._rates = RateSetter(optimizer, config.parsed_schedule, source.steps, config.epochs)
        self._callbacks = CallbackList(callbacks)
        known = ["loss", *(["eval_loss", *metrics] if validation is not None else [])]
        self._callbacks.callbacks += build_callbacks(config, known)
        self._best = BestWeights(config.keep_best, network, self._trainer.read_average) if config.keep_best else None
        if self._best is not None:
            self._callbacks.callbacks.append(self._best)
        self._validation: ValidationLoop | None = None
        if validation is not None:
            function = None if loss is None else build_loss(loss, validation.layout)
            evaluator = Evaluator(mixed, function, metrics, validation)
            self._validation = ValidationLoop(evaluator, self._trainer, self._callbacks.select_for_evaluation())
        self._profile = Profile()
        self._params = CallbackParams(
            batch_num=source.steps,
            cur_step_num=0,
            dataset_sink_mode=False,
            device_number=worker.size,
            epoch_num=config.epochs,
            initial_step=0,
            last_save_ckpt_step=None,
            latest_ckpt_file=None,
            list_callback=self._callbacks.callbacks,
            loss_fn=loss,
            loss_scale_mananger=None,
            mode="train",
            network=network,
            optimizer=optimizer,
            parallel_mode=config.parallel_mode if worker.size > 1 else "stand_alone",
            train_dataset=source.raw,
            train_dataset_element=None,
            train_network=None,
        )
        self._context = RunContext(self._params)
        self._resumed: Checkpoint | None = None
        # Of the current epoch: samples done by all workers, sum of their losses.
        self._position = 0
        self._loss_sum = 0.0
        self._pending: list[tuple[Any, int]] = []
        self._last_progress = 0.0
        self._progress = ProgressReporter() if worker.is_writer else None

    @property
    def best_epoch(self) -> int | None:
        """Epoch of the weights that `keep_best` has kept."""
        return self._best.epoch if self._best is not None and self._best.epoch else None

    def start(self) -> None:
        """Resume from the newest intact checkpoint, if there is one."""
        writes = self._worker.is_writer
        found = self._checkpoints.open()
        distributed.check_agreement(self._worker, "the newest checkpoint", found.path.name if found else "none")
        records: list[dict[str, Any]] = []
        if found is not None:
            self._resume(found)
            records = read_history(found.path / METRICS_FILE)
        else:
            distributed.broadcast_parameters(self._parts, self._network.get_parameters())
        output = self._output_dir
        self.history = History(output / METRICS_FILE if output is not None and writes else None, records)

    def _resume(self, found: Checkpoint) -> None:
        load_parameters(found, self._network, self._optimizer, self._further)
        training = found.training
        self.epoch, self.step = found.epoch, found.step
        self.metrics = dict(found.metrics)
        self.stopped = bool(training.get("stopped")) and training.get("epochs") == self.config.epochs
        self._resumed = found
        self.resumed_from = self._checkpoints.locate(found.path.name)
        if found.seed != self.config.seed:
            _logger.warning(
                "%s was trained with seed %d, this run has seed %d", self.resumed_from, found.seed, self.config.seed
            )
        # Without `samples` a checkpoint of an earlier version, whose unit is the step.
        unit = 1 if "samples" in training else self._source.batch_size
        steps, size = training.get("steps_per_epoch"), training.get("batch_size")
        if (
            (training.get("samples") == self._source.samples)
            if unit == 1
            else ((steps, size) == (self._source.steps, self._source.batch_size))
        ):
            self._position = int(training.get("position", 0)) * unit
            self._loss_sum = float(training.get("loss_sum", 0.0)) * unit
        elif training.get("position"):
            _logger.warning(
                "%s has other samples than this run: epoch %d starts at its first one",
                self.resumed_from,
                self.epoch + 1,
            )
        if self.config.verbose:
            print(
                f"resuming from {self.resumed_from}: epoch {self.epoch} of {self.config.epochs}, step {self.step}",
                flush=True,
            )

    def train(self) -> None:
        """Run the remaining epochs."""
        self._params.cur_step_num = self.step
        if self._resumed is not None:
            self._params.cur_epoch_num = self.epoch
        self._freeze()
        with self._callbacks:
            self._callbacks.call("on_train_begin", self._context)
            if self._resumed is not None:
                self._restore_state(self._resumed)
            while self.epoch < self.config.epochs and not self.stopped:
                self._run_epoch()
            self._load_average()
            self._callbacks.call("on_train_end", self._context)

    def _restore_state(self, found: Checkpoint) -> None:
        """Restore what `on_train_begin` resets: callbacks and random numbers."""
        restore_callbacks(self._callbacks.callbacks, found.training.get("callbacks", ()), found.path)
        if RANDOM_FILE in found.files:
            restore_random_state((found.path / RANDOM_FILE).read_text(encoding="utf-8"))

    def _run_epoch(self) -> None:
        params = self._params
        params.cur_epoch_num = self.epoch + 1
        self._freeze()
        self._profile = Profile()
        self._callbacks.call("on_train_epoch_begin", self._context)
        begun, first = time.perf_counter(), self._position
        terminated = self._run_steps()
        self._collect_losses()
        distributed.average_statistics(self._parts, self._network)
        seconds = max(time.perf_counter() - begun, 1e-9)
        loss = self._loss_sum / max(self._position, 1)
        if not math.isfinite(loss):
            raise KfpMindSporeError(
                f"the loss of epoch {self.epoch + 1} is {loss}: training cannot continue",
                hint="Lower the learning rate, or check the values of the data. Earlier checkpoints are intact.",
            )
        samples = self._position - first
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "loss": loss,
            "learning_rate": self._rates.read(),
            "samples_per_second": round(samples / seconds, 1),
        }
        if self._source.layout.tokens:
            record["tokens_per_second"] = round(samples * self._source.layout.tokens / seconds, 1)
        if self._trainer.timed_steps:
            record["rank_seconds"] = self._report_ranks()
        self.metrics = {"loss": loss}
        last = self.epoch + 1 == self.config.epochs or self._context.get_stop_requested()
        if self._validation is not None and (last or (self.epoch + 1) % self.config.validation_epochs == 0):
            with self._profile.measure("evaluation"):
                record["validation"] = self._record_metrics(*self._validation.run_with_hooks(self._params))
        self._callbacks.call("on_train_epoch_end", self._context)
        params.pop("metrics", None)
        params.pop("eval_results", None)
        self.stopped = self._context.get_stop_requested()
        self.epoch += 1
        self._position, self._loss_sum = 0, 0.0
        record["seconds"] = self._profile.round()
        self.history.append(record)
        last = self.stopped or self.epoch == self.config.epochs
        if last or terminated or self.epoch % self.config.checkpoint_epochs == 0 or self._is_checkpoint_step():
            with self._profile.measure("checkpoint"):
                self._write_checkpoint()
        record["seconds"] = self._profile.round()
        self.history.write_last()
        self._report(record)
        if terminated or (self._termination.requested and self._worker.size == 1):
            self._exit()

    def _freeze(self) -> None:
        """Train what the epoch trains; another set of parameters compiles another step."""
        frozen = list_frozen(self.config, self._names, self.epoch + 1)
        if self.config.freeze:
            disable_weight_decay(self._optimizer, frozen)
        self._trainer.set_frozen(frozen)
        self._params.train_network = self._trainer.cell

    def _run_steps(self) -> bool:
        """Run the remaining steps of the epoch; exit if SIGTERM arrives before the last one."""
        params, context, callbacks, seconds = self._params, self._context, self._callbacks, self._profile.seconds
        terminated = False
        self._trainer.clear_seconds()
        ready = time.perf_counter()
        batches = iter(self._source.read(self.epoch, self._position))
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            seconds["data"] += time.perf_counter() - begun
            if batch is None:
                break
            params.cur_step_num = self.step + 1
            params.train_dataset_element = batch.tensors
            self._rates.set(self.step)
            callbacks.call("on_train_step_begin", context)
            watchdog.begin_step()
            begun = time.perf_counter()
            outputs, terminated = self._trainer.run(batch, self._termination.requested, ready)
            if self._parts.size != self._worker.size:
                terminated = bool(distributed.sum_values(self._worker, [terminated])[0] > 0)
            ready = time.perf_counter()
            seconds["step"] += ready - begun
            params.net_outputs = outputs
            self._pending.append((outputs, batch.samples))
            self.step += 1
            watchdog.end_step(self.step)
            self._position += batch.samples
            self._poll_checkpoints()
            callbacks.call("on_train_step_end", context)
            self._show_progress()
            if context.get_stop_requested():
                break
            if not self._source.is_finished(self._position) and (terminated or self._is_checkpoint_step()):
                self._collect_losses()
                distributed.average_statistics(self._parts, self._network)
                begun = time.perf_counter()
                self._write_checkpoint()
                seconds["checkpoint"] += time.perf_counter() - begun
                if terminated:
                    self._exit()
        return terminated

    def _report_ranks(self) -> list[float]:
        """Return the seconds of a step by rank, without waiting for the others; log a warning about a slow one."""
        seconds = [round(float(value), 5) for value in self._trainer.rank_seconds / self._trainer.timed_steps]
        slow = distributed.find_straggler(seconds)
        if slow is not None and self._worker.is_writer:
            others = statistics.median(seconds[:slow] + seconds[slow + 1 :])
            _logger.warning(
                "epoch %d: worker %d is slow: %.4f s a step without waiting, the median of the others is %.4f s",
                self.epoch + 1,
                slow,
                seconds[slow],
                others,
            )
        return seconds

    def _load_average(self) -> None:
        average = self._trainer.read_average()
        for parameter in self._network.get_parameters():
            if parameter.name in average:
                parameter.set_data(average[parameter.name])

    def _collect_losses(self) -> None:
        begun = time.perf_counter()
        for outputs, samples in self._pending:
            loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
            if self._params.loss_fn is None and self.config.train_step is None:
                check_returned_loss(loss, self._network, self._source.raw)
            self._loss_sum += float(np.mean(loss.asnumpy())) * samples
        self._pending.clear()
        # The device computes asynchronously: reading a loss waits for its step.
        self._profile.seconds["step"] += time.perf_counter() - begun

    def _record_metrics(self, values: dict[str, Any], eval_loss: float) -> dict[str, Any]:
        plain = {name: np.asarray(value).tolist() for name, value in values.items()}
        recorded = {"eval_loss": eval_loss, **plain}
        self.metrics.update({name: float(value) for name, value in recorded.items() if isinstance(value, (int, float))})
        return recorded

    def finish(self) -> Path | None:
        """Evaluate the final weights if a callback may have replaced them, and write the final checkpoint."""
        if (self.stopped or self._best is not None) and self._validation is not None:
            self._record_metrics(*self._validation.run())
        if self._progress is not None:
            self._progress.finish()
        output = self._output_dir
        if output is None:
            return None
        path = output / "checkpoint"
        if self._worker.is_writer:
            self._checkpoints.wait()
            self._take_snapshot(is_final=True).write(path)
        return path

    def _is_checkpoint_step(self) -> bool:
        steps = self.config.checkpoint_steps
        return steps is not None and self.step % steps == 0

    def _write_checkpoint(self) -> None:
        """Write a checkpoint in the background."""
        name = name_checkpoint(self.epoch, self.step)
        if self._checkpoints.is_active and self._checkpoints.locate(name) != self.resumed_from:
            self._checkpoints.submit(self._take_snapshot())

    def _poll_checkpoints(self) -> None:
        self._checkpoints.poll()
        self._params.update(last_save_ckpt_step=self._checkpoints.step, latest_ckpt_file=self._checkpoints.latest)

    def _take_snapshot(self, *, is_final: bool = False) -> Snapshot:
        """Copy the state; a final checkpoint has none of callbacks and random numbers."""
        watchdog.mark_progress()
        callbacks, weights = copy_callbacks(() if is_final else self._callbacks.callbacks)
        description = {
            "epoch": self.epoch,
            "step": self.step,
            "seed": self.config.seed,
            "network": self._description,
            "metrics": dict(self.metrics),
            "training": {
                "epochs": self.config.epochs,
                "steps_per_epoch": self._source.steps,
                "batch_size": self._source.batch_size,
                "samples": self._source.samples,
                "workers": self._worker.size,
                "position": self._position,
                "loss_sum": self._loss_sum,
                "stopped": self.stopped,
                "callbacks": callbacks,
            },
            "preprocessing": self._preprocessing,
        }
        texts = {METRICS_FILE: self.history.to_text()}
        if not is_final:
            texts[RANDOM_FILE] = read_random_state()
        parameters = copy_parameters(self._network, self._optimizer, self._further)
        return Snapshot(description, {**parameters, **weights}, texts)

    def _exit(self) -> None:
        """Exit with 143 once the checkpoint is written, with all workers: a job ends the peers of one that exited."""
        watchdog.mark_terminated()
        self._checkpoints.wait()
        distributed.sum_values(self._worker, [0])
        if self._worker.is_writer:
            location = self._checkpoints.locate(name_checkpoint(self.epoch, self.step))
            saved = f"saved {location}" if location else "nothing saved"
            print(
                f"SIGTERM after step {self.step}: {saved}; exiting with code {EXIT_CODE}", file=sys.stderr, flush=True
            )
        raise SystemExit(EXIT_CODE)

    def _show_progress(self) -> None:
        now = time.monotonic()
        if now - self._last_progress < _PROGRESS_SECONDS or not self._worker.is_writer:
            return
        self._last_progress = now
        self._collect_losses()
        self._emit(self.epoch + 1, self._loss_sum / max(self._position, 1), self.metrics)

    def _report(self, record: dict[str, Any]) -> None:
        if self._worker.is_writer:
            self._emit(record["epoch"], record["loss"], self.metrics)
        if self.config.verbose:
            print(describe_epoch(record, self.config.epochs), flush=True)

    def _emit(self, epoch: int, loss: float, metrics: dict[str, float]) -> None:
        steps = self.config.epochs * self._source.steps
        counts = {"epoch": epoch, "epochs": self.config.epochs, "step": self.step, "steps": steps}
        events.emit("progress", "training.fit", **counts, loss=loss, metrics=metrics)
        if self._progress is not None:
            self._progress.update(**counts, metrics={**metrics, "loss": loss})
