"""The engine of a sweep: asks Optuna for parameters, runs trials as jobs, reports their epochs and stops losers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.evaluation.curves import read_records
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.msjob.backends.local import LocalBackend
from kfp_mindspore.msjob.client import MSJobClient
from kfp_mindspore.msjob.commands import NETWORK_PARAMETERS
from kfp_mindspore.msjob.status import DetailedStatus
from kfp_mindspore.settings import METRICS_FILE
from kfp_mindspore.sweeps import study as studies
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.space import Space
from kfp_mindspore.sweeps.study import SweepResult, TrialResult

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

    from kfp_mindspore.msjob.types import MSJob

_POLL_SECONDS = 0.5
_LOCK_FILE = ".lock"


@dataclass
class _Running:
    """A trial whose job runs."""

    trial: Trial
    job: str
    output: str
    started: float = field(default_factory=time.monotonic)
    epochs: int = 0


def sweep(
    template: Mapping[str, Any],
    space: Mapping[str, Any] | Space,
    objective: str,
    *,
    directory: Path | str,
    output: str = "",
    client: MSJobClient | None = None,
    on_trial: Callable[[TrialResult], None] | None = None,
    **options: Any,
) -> SweepResult:
    """Run trials of a training with other parameters, and return them all.

    Each trial is an MSJob. Its metrics are read after each epoch, and the pruner stops a trial that falls behind with
    SIGTERM. A sweep that was interrupted or killed goes on when it is started in the same directory: trials that have
    ended are not run again, jobs that still run are followed, and others continue from their checkpoints.

    Args:
        template: `MSJobClient.train` arguments without `name`, such as {"network": "my_network:LeNet5", "dataset":
            "data"} or {"script": "train.py", "dataset": "data"}; `trainer_parameters` are those that all trials share.
        space: The parameters, see `Space`.
        objective: The metric to improve, see `SweepOptions`.
        directory: Directory for the study and, of local jobs, the trials' outputs.
        output: URI or directory in the pods that jobs on a cluster write to.
        client: For the jobs; by default the backend that KFP_MINDSPORE_BACKEND names.
        on_trial: Called with each trial that has ended.
        **options: Further fields of `SweepOptions`.

    Raises:
        ValidationError: An option or a parameter is wrong; the message names each one.
        UserError: Another engine runs the sweep, or the directory holds another one.
    """
    given = SweepOptions(objective=objective, **options)
    known = list(NETWORK_PARAMETERS) if template.get("network") else None
    parsed = space if isinstance(space, Space) else Space(space, known)
    folder = Path(directory).absolute()
    description = {
        "template": dict(template),
        "space": list(parsed.to_dict().items()),
        "options": dataclasses.asdict(given),
        "output": output,
    }
    return _start(folder, description, given, parsed, client, on_trial)


def resume_sweep(
    directory: Path | str, *, client: MSJobClient | None = None, on_trial: Callable[[TrialResult], None] | None = None
) -> SweepResult:
    """Go on with a sweep by its directory alone; see `sweep`."""
    folder = Path(directory).absolute()
    description = studies.read_description(folder)
    options, space = SweepOptions(**description["options"]), Space(dict(description["space"]))
    return _start(folder, description, options, space, client, on_trial)


def _start(
    folder: Path,
    description: dict[str, Any],
    options: SweepOptions,
    space: Space,
    client: MSJobClient | None,
    on_trial: Callable[[TrialResult], None] | None,
) -> SweepResult:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lease.hold(folder / _LOCK_FILE)
    except KfpMindSporeError as error:
        raise UserError(f"sweep {folder}: another process runs it", hint="Wait for its end, or end it.") from error
    with lock:
        if (folder / studies.SWEEP_FILE).is_file():
            found = studies.read_description(folder)
            if found["template"] != description["template"] or dict(found["space"]) != dict(description["space"]):
                raise UserError(
                    f"sweep {folder}: has another training or another space",
                    hint="Use another directory for a new sweep.",
                )
        engine = _Engine(folder, description, options, space, client or MSJobClient(), on_trial or (lambda trial: None))
        files.write_json(folder / studies.SWEEP_FILE, description)
        engine.run()
    return studies.read_sweep(folder)


class _Engine:
    def __init__(
        self,
        folder: Path,
        description: Mapping[str, Any],
        options: SweepOptions,
        space: Space,
        client: MSJobClient,
        on_trial: Callable[[TrialResult], None],
    ) -> None:
        self._folder = folder
        self._description = description
        self._options = options
        self._space = space
        self._client = client
        self._on_trial = on_trial
        self._study: Study = studies.open_study(folder, options)
        self._trials = options.trials
        if options.sampler == "grid":
            grid = space.list_grid()[: options.trials]
            self._trials = len(grid)
            for parameters in grid:
                self._study.enqueue_trial(parameters, skip_if_exists=True)
        self._running: list[_Running] = []

    def run(self) -> None:
        """Run the trials; an interruption ends the jobs, which then have a checkpoint, and keeps their trials."""
        try:
            self._adopt()
            while self._running or self._count() < self._trials:
                while len(self._running) < self._options.parallel and self._count() < self._trials:
                    self._begin(self._study.ask())
                for running in list(self._running):
                    self._follow(running)
                time.sleep(_POLL_SECONDS)
        finally:
            for running in self._running:
                self._end_job(running.job)

    def _count(self) -> int:
        """Return the number of trials that have begun."""
        from optuna.trial import TrialState

        return sum(trial.state != TrialState.WAITING for trial in self._study.get_trials(deepcopy=False))

    def _adopt(self) -> None:
        """Go on with an earlier engine's trials, and delete jobs that it has not deleted."""
        from optuna.trial import TrialState

        jobs = {job.name for job in self._client.list_jobs()}
        for found in self._study.get_trials(deepcopy=False):
            name = found.user_attrs.get(studies.JOB_ATTRIBUTE)
            if found.state.is_finished() and name in jobs:
                self._end_job(name)
        for found in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial = studies.adopt_trial(self._study, self._folder, found.number)
            running = self._begin(trial)
            running.epochs = len(found.intermediate_values)

    def _begin(self, trial: Trial) -> _Running:
        """Start a trial's job; a job that an earlier engine has started is followed."""
        parameters = self._space.suggest(trial)
        template = dict(self._description["template"])
        output = studies.name_output(self._description, self._folder, trial.number)
        name = f"{self._folder.name.lower()[:40]}-{trial.number}"
        trial.set_user_attr(studies.JOB_ATTRIBUTE, name)
        shared = template.pop("trainer_parameters", None) or {}
        running = _Running(trial, name, output)
        with contextlib.suppress(AlreadyExistsError):
            self._client.train(name, **template, trainer_parameters={**shared, **parameters}, output_dir=output)
        self._running.append(running)
        return running

    def _follow(self, running: _Running) -> None:
        """Report a trial's new epochs, and end the trial when its job has ended or the pruner stops it."""
        try:
            job = self._client.get_job(running.job)
        except NotFoundError:
            self._finish(running, "its job was deleted")
            return
        # Read before the epochs: the last one of an ended job is written.
        is_failed, is_succeeded = (
            check(job=job) for check in (self._client.is_job_failed, self._client.is_job_succeeded)
        )
        for epoch, value in self._read_epochs(running, job).items():
            if epoch <= running.epochs:
                continue
            running.epochs = epoch
            if not math.isfinite(value):
                self._finish(running, f"{self._options.objective} is {value} in epoch {epoch}")
                return
            running.trial.report(value, epoch)
        if is_failed:
            error = self._client.explain_failure(job, lines=1)
            self._finish(running, ": ".join([error.message, *error.log]))
        elif is_succeeded:
            self._finish(running, "" if running.epochs else f"no epoch of it has reported {self._options.objective!r}")
        elif running.epochs and running.trial.should_prune():
            self._finish(running, "", is_pruned=True)

    def _read_epochs(self, running: _Running, job: MSJob) -> dict[int, float]:
        """Return the objective by epoch: from metrics.jsonl, or only the newest one from a cluster job's status."""
        if isinstance(self._client.backend, LocalBackend):
            file = Path(running.output, METRICS_FILE)
            records = read_records(file) if file.is_file() else []
            values = {record["epoch"]: self._options.read_value(record) for record in records}
            return {epoch: value for epoch, value in values.items() if value is not None}
        progress = job.status.progress if isinstance(job.status, DetailedStatus) else None
        if progress is None or not progress.steps or not progress.epochs or progress.step is None:
            return {}
        value = next((metric.value for metric in progress.metrics if metric.name == self._options.objective), None)
        done = progress.step * progress.epochs // progress.steps
        return {} if value is None or not done else {done: float(value)}

    def _finish(self, running: _Running, reason: str, *, is_pruned: bool = False) -> None:
        from optuna.trial import TrialState

        running.trial.set_user_attr(studies.SECONDS_ATTRIBUTE, round(time.monotonic() - running.started, 3))
        if reason:
            running.trial.set_user_attr(studies.REASON_ATTRIBUTE, reason)
        state, value = TrialState.PRUNED if is_pruned else TrialState.FAIL, None
        if not reason and not is_pruned:
            (found,) = (item for item in self._study.get_trials(deepcopy=False) if item.number == running.trial.number)
            state = TrialState.COMPLETE
            value = studies.choose_best(found.intermediate_values.values(), self._options.is_maximized)
        # The trial before its job: an engine killed between the two finds the job of an ended trial, and deletes it.
        self._study.tell(running.trial, value, state=state)
        self._end_job(running.job)
        self._running.remove(running)
        self._on_trial(studies.read_sweep(self._folder).trials[running.trial.number])

    def _end_job(self, name: str) -> None:
        """Delete a job; its processes receive SIGTERM, and `fit` writes a checkpoint."""
        with contextlib.suppress(NotFoundError):
            self._client.delete_job(name)
