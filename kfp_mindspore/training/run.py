"""One training run: the loop over epochs and steps."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mindspore.train import RunContext

from kfp_mindspore.compat.mindspore_import import get_device
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.formats.checkpoint import Checkpoint, NetworkSpec
from kfp_mindspore.formats.dataset import Dataset
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.tracking.trackers import Trackers
from kfp_mindspore.training import distributed
from kfp_mindspore.training.callbacks import BestWeights, CallbackList, CallbackParams, build_callbacks
from kfp_mindspore.training.checkpoints.checkpointing import Checkpointer
from kfp_mindspore.training.checkpoints.initial import load_initial
from kfp_mindspore.training.checkpoints.state import TrainingState
from kfp_mindspore.training.checks.arguments import apply_precision, check_returned_loss
from kfp_mindspore.training.checks.exportability import check_export
from kfp_mindspore.training.computation.dropout import count_dropout
from kfp_mindspore.training.computation.evaluator import Evaluator, resolve_metrics
from kfp_mindspore.training.computation.freezing import Freezer
from kfp_mindspore.training.computation.losses import Matcher, NetworkWithLoss, build_loss, check_mean
from kfp_mindspore.training.computation.rates import RateSetter
from kfp_mindspore.training.computation.steps import Trainer
from kfp_mindspore.training.computation.validation import ValidationLoop
from kfp_mindspore.training.config import TrainingConfig
from kfp_mindspore.training.distributed import WorkerInfo
from kfp_mindspore.training.reports.epoch_report import build_record, describe_epoch, warn_about_straggler
from kfp_mindspore.training.reports.profile import Profile
from kfp_mindspore.training.reports.progress import ProgressReporter
from kfp_mindspore.training.samples.data import Source, Validation
from kfp_mindspore.training.workers import watchdog
from kfp_mindspore.training.workers.signals import EXIT_CODE, Termination


class Run:
    """A run: `start` resumes, `train` loops, `finish` writes the final checkpoint.

    Attributes:
        state: The state between two steps.
        resumed_from: Path or URI from which the run was resumed, or None.
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
        trackers: Trackers,
        exports: bool,
    ) -> None:
        self.config = config
        self._checkpoints = checkpoints
        self._output_dir = None if config.output_dir is None else Path(config.output_dir)
        self.resumed_from: Path | str | None = None
        self._resumed: Checkpoint | None = checkpoints.open()
        found = self._resumed.path.name if self._resumed else "none"
        distributed.check_agreement(worker, "the newest checkpoint", found)
        if self._resumed is None and exports:
            check_export(network, source, config, worker)
        if self._resumed is None and config.initial is not None:
            # Before the trainer copies the weights for their average.
            load_initial(network, config)
        self._network = network
        self._source = source
        self._worker = worker
        # For the batches: one part for all workers where MindSpore divides them itself.
        self._parts = parts
        self._termination = termination
        self._trackers = trackers
        counters = count_dropout(network, config.seed, worker.rank)
        mixed = apply_precision(network, config.precision)
        function = None if loss is None else build_loss(loss, source.layout)
        with_loss = mixed if loss is None else NetworkWithLoss(mixed, function, len(source.layout.inputs))
        # Sample weights replace the reduction by their own mean.
        if parts.size * parts.pieces * config.accumulate > 1 and not source.layout.weighted:
            check_mean(loss)
        match = Matcher(mixed, loss, source.layout)
        self._trainer = Trainer(network, with_loss, optimizer, config, parts, source.layout.names, match)
        tasks, labels = ({}, ()) if validation is None else (validation.tasks, validation.labels)
        metrics = resolve_metrics(config.metrics, tasks, labels)
        if loss is None and metrics:
            raise UserError("metrics: need loss=…; a network that returns its loss has no outputs to measure")
        self._freezer = Freezer(config, optimizer)
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
            evaluator = Evaluator(mixed, function, metrics, validation, match)
            self._validation = ValidationLoop(evaluator, self._trainer, self._callbacks.select_for_evaluation())
        self.state = TrainingState(
            config,
            network=network,
            description=description,
            optimizer=optimizer,
            further=[*self._trainer.state.parameters, *counters],
            source=source,
            callbacks=self._callbacks.callbacks,
            workers=worker.size,
            trackers=trackers,
        )
        self._params = CallbackParams.of_training(
            config, network, loss, optimizer, source, self._callbacks.callbacks, worker.size
        )
        self._context = RunContext(self._params)
        self._profile = Profile()
        # Outputs and samples from steps whose loss is not read yet.
        self._pending: list[tuple[Any, int]] = []
        self._progress = (
            ProgressReporter(config.epochs, source.steps, device=get_device()) if worker.is_writer else None
        )

    @property
    def best_epoch(self) -> int | None:
        """The epoch whose weights `keep_best` has kept."""
        return self._best.epoch if self._best is not None and self._best.epoch else None

    def start(self) -> None:
        """Resume from the newest intact checkpoint, if there is one."""
        state, config = self.state, self.config
        if config.verbose:
            print(f"training on {get_device()}, worker {self._worker.rank} of {self._worker.size}", flush=True)
        found = self._resumed
        if found is not None:
            self.resumed_from = self._checkpoints.locate(found.path.name) or found.path
            state.load(found, self.resumed_from)
            if config.verbose:
                done = f"epoch {state.epoch} of {config.epochs}, step {state.step}"
                print(f"resuming from {self.resumed_from}: {done}", flush=True)
        else:
            distributed.broadcast_parameters(self._parts, self._network.get_parameters())
        output = self._output_dir if self._worker.is_writer else None
        state.open_history(None if output is None else output / METRICS_FILE, found)
        states = None if found is None else found.training.get("trackers", {})
        self._trackers.begin(self._describe_parameters(), states, state.step)

    def _describe_parameters(self) -> dict[str, Any]:
        """Return what trackers show about the run: options that are numbers or texts, and what they apply to."""
        options = {
            name: value for name, value in vars(self.config).items() if isinstance(value, (bool, int, float, str))
        }
        raw, optimizer = self._source.raw, self._params.optimizer
        return {
            **options,
            "schedule": self.config.parsed_schedule.name,
            "network": type(self._network).__name__,
            "optimizer": type(optimizer).__name__,
            "workers": self._worker.size,
            "device": get_device(),
            "samples": self._source.samples,
            **({"dataset_digest": raw.digest} if isinstance(raw, Dataset) else {}),
        }

    def train(self) -> None:
        """Run the remaining epochs."""
        self._params.cur_step_num = self.state.step
        if self._resumed is not None:
            self._params.cur_epoch_num = self.state.epoch
        self._freeze()
        with self._callbacks:
            self._callbacks.call("on_train_begin", self._context)
            if self._resumed is not None:
                self.state.load_after_begin(self._resumed)
            while self.state.epoch < self.config.epochs and not self.state.stopped:
                self._run_epoch()
            self._trainer.load_average()
            self._callbacks.call("on_train_end", self._context)

    def _run_epoch(self) -> None:
        params, state, config, profile = self._params, self.state, self.config, Profile()
        params.cur_epoch_num = state.epoch + 1
        self._freeze()
        self._profile = profile
        self._callbacks.call("on_train_epoch_begin", self._context)
        begun, first = time.perf_counter(), state.position
        terminated = self._run_steps()
        self._collect_losses()
        distributed.average_statistics(self._parts, self._network)
        seconds = max(time.perf_counter() - begun, 1e-9)
        if not math.isfinite(state.loss):
            raise KfpMindSporeError(
                f"the loss of epoch {state.epoch + 1} is {state.loss}: training cannot continue",
                hint="Lower the learning rate, or check the values of the data. Earlier checkpoints are intact.",
            )
        record = build_record(
            state,
            self._source,
            rate=self._rates.read(),
            samples=state.position - first,
            seconds=seconds,
            rank_seconds=self._trainer.mean_rank_seconds,
        )
        state.metrics = {"loss": state.loss}
        last = state.epoch + 1 == config.epochs or self._context.get_stop_requested()
        if self._validation is not None and (last or (state.epoch + 1) % config.validation_epochs == 0):
            with profile.measure("evaluation"):
                record["validation"] = state.update_metrics(*self._validation.run_with_hooks(params))
        self._callbacks.call("on_train_epoch_end", self._context)
        params.pop("metrics", None)
        params.pop("eval_results", None)
        state.stopped = self._context.get_stop_requested()
        state.epoch += 1
        state.position, state.loss_sum = 0, 0.0
        record["seconds"] = profile.round()
        state.history.append(record)
        self._trackers.log_epoch(record)
        last = state.stopped or state.epoch == config.epochs
        is_preempted = self._is_preempted(is_epoch_end=True)
        is_due = state.epoch % config.checkpoint_epochs == 0 or self._is_checkpoint_step()
        if last or terminated or is_preempted or is_due:
            with profile.measure("checkpoint"):
                self._write_checkpoint()
        record["seconds"] = profile.round()
        state.history.write_last()
        if self._progress is not None:
            warn_about_straggler(record)
            self._progress.update(epoch=state.epoch, step=state.step, loss=record["loss"], metrics=state.metrics)
        if config.verbose:
            print(describe_epoch(record, config.epochs), flush=True)
        if terminated or (self._termination.requested and self._worker.size == 1):
            self._exit()

    def _freeze(self) -> None:
        """Train what the epoch trains; a different parameter set compiles another step."""
        self._trainer.set_frozen(self._freezer.freeze(self.state.epoch + 1))
        self._params.train_network = self._trainer.cell

    def _run_steps(self) -> bool:
        """Run the remaining steps in the epoch; exit if SIGTERM arrives before the last one."""
        params, context, callbacks, seconds = self._params, self._context, self._callbacks, self._profile.seconds
        terminated = False
        self._trainer.clear_seconds()
        ready = time.perf_counter()
        batches = iter(self._source.read(self.state.epoch, self.state.position))
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            seconds["data"] += time.perf_counter() - begun
            if batch is None:
                break
            params.cur_step_num = self.state.step + 1
            params.train_dataset_element = batch.tensors
            self._rates.set(self.state.step)
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
            self.state.step += 1
            watchdog.end_step(self.state.step)
            self.state.position += batch.samples
            self._poll_checkpoints()
            callbacks.call("on_train_step_end", context)
            self._show_progress()
            if context.get_stop_requested():
                break
            if self._source.is_finished(self.state.position):
                continue
            if self._is_preempted() or terminated or self._is_checkpoint_step():
                self._collect_losses()
                distributed.average_statistics(self._parts, self._network)
                begun = time.perf_counter()
                self._write_checkpoint()
                seconds["checkpoint"] += time.perf_counter() - begun
                if terminated:
                    self._exit()
        return terminated

    def _collect_losses(self) -> None:
        begun = time.perf_counter()
        losses = []
        for outputs, samples in self._pending:
            loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
            if self._params.loss_fn is None and self.config.train_step is None:
                check_returned_loss(loss, self._network, self._source.raw)
            losses.append(float(np.mean(loss.asnumpy())))
            self.state.loss_sum += losses[-1] * samples
        self._trackers.log_steps(losses, self.state.step, self._source.steps)
        self._pending.clear()
        # The device computes asynchronously: reading a loss waits for its step.
        self._profile.seconds["step"] += time.perf_counter() - begun

    def finish(self) -> Path | None:
        """Evaluate the final weights if a callback may have replaced them, and write the final checkpoint."""
        if (self.state.stopped or self._best is not None) and self._validation is not None:
            self.state.update_metrics(*self._validation.run())
        if self._progress is not None:
            self._progress.finish()
        if self._checkpoints.session is not None:
            # The last epoch's checkpoint may precede the average or the best weights.
            self._write_checkpoint()
        output = self._output_dir
        if output is None:
            return None
        path = output / "checkpoint"
        if self._worker.is_writer:
            self._checkpoints.wait()
            watchdog.mark_progress()
            self.state.take_snapshot(is_final=True).write(path)
            self._trackers.tag("checkpoint", path)
        return path

    def _is_checkpoint_step(self) -> bool:
        steps = self.config.checkpoint_steps
        return steps is not None and self.state.step % steps == 0

    def _is_preempted(self, *, is_epoch_end: bool = False) -> bool:
        session = self._checkpoints.session
        if session is None or not session.is_notice_due(self.state.step, is_epoch_end=is_epoch_end):
            return False
        self._checkpoints.wait()
        return session.is_preempted()

    def _write_checkpoint(self) -> None:
        """Write a checkpoint in the background."""
        location = self._checkpoints.locate(self.state.name)
        if self._checkpoints.is_active and (location is None or location != self.resumed_from):
            watchdog.mark_progress()
            self._checkpoints.submit(self.state.take_snapshot() if self._worker.is_writer else None)

    def _poll_checkpoints(self) -> None:
        self._checkpoints.poll()
        self._params.update(last_save_ckpt_step=self._checkpoints.step, latest_ckpt_file=self._checkpoints.latest)

    def _exit(self) -> None:
        """Exit with 143 once the checkpoint is written, with all workers: a job ends an exited worker's peers."""
        watchdog.mark_terminated()
        self._checkpoints.wait()
        distributed.sum_values(self._worker, [0])
        if self._worker.is_writer:
            location = self._checkpoints.locate(self.state.name)
            saved = f"saved {location}" if location else "nothing saved"
            print(
                f"SIGTERM after step {self.state.step}: {saved}; exiting with code {EXIT_CODE}",
                file=sys.stderr,
                flush=True,
            )
        raise SystemExit(EXIT_CODE)

    def _show_progress(self) -> None:
        if self._progress is not None and self._progress.is_due:
            self._collect_losses()
            state = self.state
            self._progress.update(epoch=state.epoch + 1, step=state.step, loss=state.loss, metrics=state.metrics)
