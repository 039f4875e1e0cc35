"""One training run: the loop over epochs and steps, its checkpoints, resume and reports."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore.train import RunContext

from kfp_mindspore import events
from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.formats import checkpoint as checkpoints
from kfp_mindspore.formats.checkpoint import Checkpoint, NetworkSpec
from kfp_mindspore.training import distributed
from kfp_mindspore.training.callbacks import CallbackList, CallbackParams, restore_callbacks, save_callbacks
from kfp_mindspore.training.data import Source, Validation
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.history import METRICS_FILE, History, read_history
from kfp_mindspore.training.signals import EXIT_CODE, Termination
from kfp_mindspore.training.state import load_parameters, save_parameters
from kfp_mindspore.training.steps import Evaluator, Trainer, read_learning_rate

_PROGRESS_SECONDS = 0.5
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingConfig:
    """The resolved arguments of `fit`."""

    epochs: int
    seed: int
    validation_epochs: int
    checkpoint_dir: Path | None
    checkpoint_epochs: int
    keep_checkpoints: int
    output_dir: Path | None
    network: NetworkSpec
    verbose: bool


class Run:
    """A run: `start` resumes, `train` loops, `finish` writes the final checkpoint.

    Attributes:
        epoch: Number of epochs completed.
        step: Number of optimizer steps done.
        stopped: Whether a callback requested a stop.
        metrics: Newest metrics by name.
        history: The epochs' records.
        resumed_from: The checkpoint that the run was resumed from, or None.
    """

    def __init__(
        self,
        config: TrainingConfig,
        *,
        network: Any,
        loss: Any,
        optimizer: Any,
        source: Source,
        validation: Validation | None,
        metrics: Any,
        callbacks: Any,
        worker: WorkerInfo,
        termination: Termination,
    ) -> None:
        self.config = config
        self.epoch = 0
        self.step = 0
        self.stopped = False
        self.metrics: dict[str, float] = {}
        self.resumed_from: Path | None = None
        self.history = History(None)
        self._network = network
        self._optimizer = optimizer
        self._source = source
        self._worker = worker
        self._termination = termination
        self._callbacks = CallbackList(callbacks)
        self._evaluation_callbacks = self._callbacks.select_for_evaluation()
        self._trainer = Trainer(network, loss, optimizer, worker)
        self._evaluator = Evaluator(network, loss, metrics, validation) if validation is not None else None
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
            parallel_mode="data_parallel" if worker.size > 1 else "stand_alone",
            train_dataset=source.raw,
            train_dataset_element=None,
            train_network=self._trainer.cell,
        )
        self._context = RunContext(self._params)
        self._callback_states: list[dict[str, Any]] = []
        # Of the current epoch: steps done, sum of their losses.
        self._position = 0
        self._loss_sum = 0.0
        self._pending: list[Any] = []
        self._last_progress = 0.0

    def start(self) -> None:
        """Resume from the newest intact checkpoint, if there is one."""
        root, writes = self.config.checkpoint_dir, self._worker.is_writer
        if root is not None and writes:
            checkpoints.remove_leftovers(root)
        found = checkpoints.get_latest_checkpoint(root) if root is not None else None
        distributed.check_agreement(self._worker, "the newest checkpoint", found.path.name if found else "none")
        records: list[dict[str, Any]] = []
        if found is not None:
            self._resume(found)
            records = read_history(found.path / METRICS_FILE)
        else:
            distributed.broadcast_parameters(self._worker, self._network.get_parameters())
        output = self.config.output_dir
        self.history = History(output / METRICS_FILE if output is not None and writes else None, records)

    def _resume(self, found: Checkpoint) -> None:
        load_parameters(found, self._network, self._optimizer)
        training = found.training
        self.epoch, self.step = found.epoch, found.step
        self.metrics = dict(found.metrics)
        self.stopped = bool(training.get("stopped")) and training.get("epochs") == self.config.epochs
        self._callback_states = list(training.get("callbacks", ()))
        self.resumed_from = found.path
        if found.seed != self.config.seed:
            _logger.warning(
                "%s was trained with seed %d, this run has seed %d", found.path, found.seed, self.config.seed
            )
        same = (training.get("steps_per_epoch"), training.get("batch_size")) == (
            self._source.steps,
            self._source.batch_size,
        )
        if same:
            self._position = int(training.get("position", 0))
            self._loss_sum = float(training.get("loss_sum", 0.0))
        elif training.get("position"):
            _logger.warning(
                "%s has other batches than this run: epoch %d starts at its first step", found.path, self.epoch + 1
            )
        if self.config.verbose:
            print(
                f"resuming from {found.path}: epoch {self.epoch} of {self.config.epochs}, step {self.step}", flush=True
            )

    def train(self) -> None:
        """Run the remaining epochs."""
        self._params.cur_step_num = self.step
        if self.resumed_from is not None:
            self._params.cur_epoch_num = self.epoch
        with self._callbacks:
            self._callbacks.call("on_train_begin", self._context)
            if self.resumed_from is not None:
                restore_callbacks(self._callbacks.callbacks, self._callback_states, self.resumed_from)
            while self.epoch < self.config.epochs and not self.stopped:
                self._run_epoch()
            self._callbacks.call("on_train_end", self._context)

    def _run_epoch(self) -> None:
        params = self._params
        params.cur_epoch_num = self.epoch + 1
        self._callbacks.call("on_train_epoch_begin", self._context)
        begun, first = time.perf_counter(), self._position
        terminated = self._run_steps()
        seconds = time.perf_counter() - begun
        self._collect_losses()
        loss = self._loss_sum / max(self._position, 1)
        if not math.isfinite(loss):
            raise KfpMindSporeError(
                f"the loss of epoch {self.epoch + 1} is {loss}: training cannot continue",
                hint="Lower the learning rate, or check the values of the data. Earlier checkpoints are intact.",
            )
        record: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "loss": loss,
            "learning_rate": read_learning_rate(self._optimizer),
            "images_per_second": round((self._position - first) * self._source.batch_size / max(seconds, 1e-9), 1),
        }
        self.metrics = {"loss": loss}
        last = self.epoch + 1 == self.config.epochs or self._context.get_stop_requested()
        if self._evaluator is not None and (last or (self.epoch + 1) % self.config.validation_epochs == 0):
            record["validation"] = self._validate()
        self._callbacks.call("on_train_epoch_end", self._context)
        params.pop("metrics", None)
        params.pop("eval_results", None)
        self.stopped = self._context.get_stop_requested()
        self.epoch += 1
        self._position, self._loss_sum = 0, 0.0
        self.history.append(record)
        self._report(record)
        last = self.stopped or self.epoch == self.config.epochs
        if last or terminated or self.epoch % self.config.checkpoint_epochs == 0:
            self._write_checkpoint()
        if terminated or (self._termination.requested and self._worker.size == 1):
            self._exit()

    def _run_steps(self) -> bool:
        """Run the remaining steps of the epoch; exit if SIGTERM arrives before the last one."""
        params, context, callbacks = self._params, self._context, self._callbacks
        terminated = False
        for batch in self._source.read(self.epoch, self._position):
            params.cur_step_num = self.step + 1
            params.train_dataset_element = batch
            callbacks.call("on_train_step_begin", context)
            outputs, terminated = self._trainer.run(batch, self._termination.requested)
            params.net_outputs = outputs
            self._pending.append(outputs)
            self.step += 1
            self._position += 1
            callbacks.call("on_train_step_end", context)
            self._show_progress()
            if context.get_stop_requested():
                break
            if terminated and self._position < self._source.steps:
                self._collect_losses()
                self._write_checkpoint()
                self._exit()
        return terminated

    def _collect_losses(self) -> None:
        for outputs in self._pending:
            loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
            self._loss_sum += float(np.mean(loss.asnumpy()))
        self._pending.clear()

    def _validate(self) -> dict[str, Any]:
        """Evaluate as Model.fit does during training, with the callbacks' hooks."""
        assert self._evaluator is not None
        params, callbacks = self._params, self._evaluation_callbacks
        context = RunContext(params)
        kept = {name: params.get(name) for name in ("cur_step_num", "batch_num", "net_outputs")}
        params.update(
            mode="eval",
            cur_step_num=0,
            batch_num=self._evaluator.validation.steps,
            eval_network=self._evaluator.cell,
            valid_dataset=self._evaluator.validation.raw,
        )

        def begin_step(batch: Any) -> None:
            params.cur_step_num += 1
            params.eval_dataset_element = batch
            callbacks.call("on_eval_step_begin", context)

        def end_step(outputs: Any) -> None:
            params.net_outputs = outputs
            callbacks.call("on_eval_step_end", context)

        callbacks.call("on_eval_begin", context)
        callbacks.call("on_eval_epoch_begin", context)
        values, eval_loss = self._evaluate(begin_step, end_step)
        callbacks.call("on_eval_epoch_end", context)
        params.metrics = values
        params.eval_results = {**values, "eval_loss": eval_loss}
        callbacks.call("on_eval_end", context)
        params.update(kept, mode="train")
        return self._record_metrics(values, eval_loss)

    def _evaluate(self, before: Any = None, after: Any = None) -> tuple[dict[str, Any], float]:
        assert self._evaluator is not None
        self._trainer.cell.set_train(False)
        self._evaluator.cell.set_train(False)
        try:
            return self._evaluator.run(before, after)
        finally:
            self._trainer.cell.set_train(True)

    def _record_metrics(self, values: dict[str, Any], eval_loss: float) -> dict[str, Any]:
        plain = {name: np.asarray(value).tolist() for name, value in values.items()}
        recorded = {"eval_loss": eval_loss, **plain}
        self.metrics.update({name: float(value) for name, value in recorded.items() if isinstance(value, (int, float))})
        return recorded

    def finish(self) -> Path | None:
        """Evaluate the final weights if a callback may have replaced them, and write the final checkpoint."""
        if self.stopped and self._evaluator is not None:
            self._record_metrics(*self._evaluate())
        output = self.config.output_dir
        if output is None:
            return None
        path = output / "checkpoint"
        if self._worker.is_writer:
            self._write(path, ())
        return path

    def _write_checkpoint(self) -> None:
        root = self.config.checkpoint_dir
        if root is None or not self._worker.is_writer:
            return
        path = root / checkpoints.name_checkpoint(self.epoch, self.step)
        if path == self.resumed_from:
            return
        self._write(path, self._callbacks.callbacks)
        self._params.update(last_save_ckpt_step=self.step, latest_ckpt_file=str(path))
        checkpoints.prune_checkpoints(root, self.config.keep_checkpoints)

    def _write(self, path: Path, callbacks: Sequence[Any]) -> None:
        training: dict[str, Any] = {
            "epochs": self.config.epochs,
            "steps_per_epoch": self._source.steps,
            "batch_size": self._source.batch_size,
            "workers": self._worker.size,
            "position": self._position,
            "loss_sum": self._loss_sum,
            "stopped": self.stopped,
        }
        with checkpoints.write_checkpoint(
            path,
            epoch=self.epoch,
            step=self.step,
            seed=self.config.seed,
            network=self.config.network,
            metrics=self.metrics,
            training=training,
            mindspore_version=mindspore.__version__,
        ) as directory:
            save_parameters(self._network, self._optimizer, directory)
            training["callbacks"] = save_callbacks(callbacks, directory)
            (directory / METRICS_FILE).write_text(self.history.to_text(), encoding="utf-8")

    def _exit(self) -> None:
        root = self.config.checkpoint_dir
        if self._worker.is_writer:
            saved = f"saved {root / checkpoints.name_checkpoint(self.epoch, self.step)}" if root else "nothing saved"
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
            validation = "".join(
                f", {name} {value:.4f}"
                for name, value in record.get("validation", {}).items()
                if isinstance(value, float)
            )
            print(
                f"epoch {record['epoch']}/{self.config.epochs}: loss {record['loss']:.4f}{validation}, "
                f"{record['images_per_second']:.0f} images/s",
                flush=True,
            )

    def _emit(self, epoch: int, loss: float, metrics: dict[str, float]) -> None:
        events.emit(
            "progress",
            "training.fit",
            epoch=epoch,
            epochs=self.config.epochs,
            step=self.step,
            steps=self.config.epochs * self._source.steps,
            loss=loss,
            metrics=metrics,
        )
