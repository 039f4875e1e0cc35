"""The sweep engine: gets parameters from Optuna, runs trials as jobs, reports their epochs and stops losers."""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore import files
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.kube.errors import UnreachableError
from kfp_mindspore.local.interrupts import Interrupts
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.msjob.client import MSJobClient
from kfp_mindspore.msjob.commands import NETWORK_PARAMETERS
from kfp_mindspore.outputs import check_directory
from kfp_mindspore.sweeps import study as studies
from kfp_mindspore.sweeps.jobs import ClientJobs, TrialJob, TrialJobs, TrialJobState
from kfp_mindspore.sweeps.options import CHECKPOINT_BYTES, MSJOB, RAY, SweepChanges, SweepOptions
from kfp_mindspore.sweeps.population import PopulationMember, list_generations, plan_generation
from kfp_mindspore.sweeps.space import Space
from kfp_mindspore.sweeps.study import SweepResult, TrialResult

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial
    from typing_extensions import Unpack

# Trials that fail before an epoch, one after the other, have a cause that further trials share.
_FAILURES = 3
_LOCK_FILE = ".lock"


@dataclass
class _Running:
    """A trial whose job runs."""

    trial: Trial
    job: TrialJob
    seed: int
    slot: int
    started: float
    values: dict[int, float] = field(default_factory=dict)
    records: dict[int, Mapping[str, Any]] = field(default_factory=dict)


def sweep(
    template: Mapping[str, Any],
    space: Mapping[str, Any] | type[Any] | Space,
    objective: str | SweepOptions,
    *,
    directory: Path | str,
    output: str = "",
    client: MSJobClient | None = None,
    jobs: TrialJobs | None = None,
    on_trial: Callable[[TrialResult], None] | None = None,
    engine: str = MSJOB,
    **changes: Unpack[SweepChanges],
) -> SweepResult:
    """Run a training's trials, each with other parameters, and return them all.

    Each trial is an MSJob. Its metrics are read after each epoch, and the pruner stops a trial that falls behind with
    SIGTERM. A sweep that was interrupted or killed goes on when it is started in the same directory: trials that have
    ended are not run again, jobs that still run are followed, and others continue from their checkpoints. Parameters
    follow from the seed, the trial's number and the results before it, so that a resume chooses none twice. SIGTERM,
    as Ctrl-C, ends the running jobs; their trials go on at the next start.

    Args:
        template: `MSJobClient.train` arguments without `name`, such as {"network": "my_network:LeNet5", "dataset":
            "data"} or {"script": "train.py", "dataset": "data"}; `trainer_parameters` are those that all trials share.
        space: The parameters, see `Space`.
        objective: The metric to improve, or all options.
        directory: Directory for the study and, of local jobs, the trials' outputs.
        output: URI or directory in the pods that jobs on a cluster write to.
        client: For the jobs; by default the backend that KFP_MINDSPORE_BACKEND names.
        jobs: Another place that runs the trials, to which `template` then belongs, JSON types.
        on_trial: Called with each trial that has ended.
        engine: `msjob`, or `ray` for trials that Ray Tune runs, each one process; see `sweeps.tune.run_on_ray`.
            A sweep goes on with its own engine.
        **changes: Further fields of `SweepOptions`.

    Raises:
        ValidationError: An option or a parameter is wrong; the message names each one.
        UserError: Another engine runs the sweep, or the directory holds another one.
    """
    if isinstance(objective, SweepOptions):
        options = replace(objective, **changes)
    else:
        options = SweepOptions(objective, **changes)
    known = list(NETWORK_PARAMETERS) if template.get("network") else None
    parsed = space if isinstance(space, Space) else Space(space, known)
    if list_generations(options) and "epochs" in {*(template.get("trainer_parameters") or {}), *parsed.parameters}:
        raise UserError(f"sweep: {options.pruner} sets the parameter epochs", hint="Set interval and trials instead.")
    folder = Path(directory).absolute()
    description = {
        "template": dict(template),
        "space": list(parsed.to_dict().items()),
        "options": dataclasses.asdict(options),
        "output": output,
        "name": _name_jobs(folder),
        "engine": engine,
    }
    return _start(folder, description, options, parsed, client, jobs, on_trial)


def resume_sweep(
    directory: Path | str, *, client: MSJobClient | None = None, on_trial: Callable[[TrialResult], None] | None = None
) -> SweepResult:
    """Go on with a sweep by the directory alone; see `sweep`."""
    folder = Path(directory).absolute()
    description = studies.read_description(folder)
    options, space = SweepOptions(**description["options"]), Space(dict(description["space"]))
    return _start(folder, description, options, space, client, None, on_trial)


def _name_jobs(folder: Path) -> str:
    """Return a prefix for a sweep's job names that no other directory with this name gets."""
    slug = re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-")
    return f"{slug if slug[:1].isalpha() else f'sweep-{slug}'}"[:30].strip("-") + f"-{secrets.token_hex(3)}"


def _make_jobs(client: MSJobClient | None, template: Mapping[str, Any], options: SweepOptions) -> TrialJobs:
    jobs = ClientJobs(client or MSJobClient(), template)
    if list_generations(options) and not jobs.is_local:
        raise UserError(
            f"sweep: {options.pruner} copies checkpoints, which trials on a cluster have in their pods' volumes",
            hint="The component sweep_msjob copies them in the artifact store.",
        )
    return jobs


def _start(
    folder: Path,
    description: dict[str, Any],
    options: SweepOptions,
    space: Space,
    client: MSJobClient | None,
    jobs: TrialJobs | None,
    on_trial: Callable[[TrialResult], None] | None,
) -> SweepResult:
    with Interrupts() as interrupts:
        return _run(folder, description, options, space, client, jobs, on_trial, interrupts)


def _run(
    folder: Path,
    description: dict[str, Any],
    options: SweepOptions,
    space: Space,
    client: MSJobClient | None,
    jobs: TrialJobs | None,
    on_trial: Callable[[TrialResult], None] | None,
    interrupts: Interrupts,
) -> SweepResult:
    template, engine = description["template"], description.get("engine", MSJOB)
    check_directory(folder, [template.get("dataset"), template.get("script")])
    if engine == RAY:
        from kfp_mindspore.sweeps.tune import check_ray_sweep, run_on_ray

        check_ray_sweep(template, options)
    else:
        jobs = jobs or _make_jobs(client, template, options)
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
            if found.get("engine", MSJOB) != engine:
                raise UserError(
                    f"sweep {folder}: runs by engine {found.get('engine', MSJOB)}, got {engine}",
                    hint="Go on with its own engine, or use another directory.",
                )
            description["name"] = found.get("name", folder.name.lower()[:40])
        if jobs is None:
            files.write_json(folder / studies.SWEEP_FILE, description)
            run_on_ray(folder, template, space, options)
            for trial in studies.read_sweep(folder).trials:
                if on_trial is not None:
                    on_trial(trial)
            return studies.read_sweep(folder)
        # An exception within Optuna's journal could leave its lock file, or end this process by another error.
        with interrupts.held():
            running = _Engine(folder, description, options, space, jobs, on_trial or (lambda trial: None), interrupts)
            files.write_json(folder / studies.SWEEP_FILE, description)
            running.run()
    return studies.read_sweep(folder)


class _Engine:
    def __init__(
        self,
        folder: Path,
        description: Mapping[str, Any],
        options: SweepOptions,
        space: Space,
        jobs: TrialJobs,
        on_trial: Callable[[TrialResult], None],
        interrupts: Interrupts,
    ) -> None:
        self._folder = folder
        self._description = description
        self._options = options
        self._space = space
        self._jobs = jobs
        self._on_trial = on_trial
        self._interrupts = interrupts
        self._study: Study = studies.open_study(folder, options)
        self._trials = options.trials
        if options.sampler == "grid":
            grid = space.list_grid()[: options.trials]
            self._trials = len(grid)
            for parameters in grid:
                self._study.enqueue_trial(parameters, skip_if_exists=True)
        elif space.defaults:
            self._study.enqueue_trial(space.defaults, skip_if_exists=True)
        self._running: list[_Running] = []
        self._failures = 0
        self._generations = list_generations(options)
        if self._generations:
            self._trials = sum(generation.size for generation in self._generations)
        shared = description["template"].get("trainer_parameters") or {}
        self._first_seed = int(shared.get("seed", 0))

    def run(self) -> None:
        """Run the trials; an interruption ends the jobs, which then have a checkpoint, and keeps their trials."""
        try:
            self._adopt()
            while self._running or self._count() < self._trials:
                while len(self._running) < self._options.parallel and self._count() < self._trials:
                    if not self._prepare_generation():
                        break
                    self._begin(studies.begin_trial(self._study, self._options))
                followed = list(self._running)
                for running in followed:
                    self._follow(running)
                    self._interrupts.raise_pending()
                if self._running == followed:
                    time.sleep(self._jobs.poll_seconds)
                    self._interrupts.raise_pending()
        except BaseException as error:
            self._jobs.abandon([running.job.name for running in self._running], error)
            raise

    def _count(self) -> int:
        """Return how many trials have begun."""
        from optuna.trial import TrialState

        return sum(trial.state != TrialState.WAITING for trial in self._study.get_trials(deepcopy=False))

    def _prepare_generation(self) -> bool:
        """Plan the next generation when the former one has ended; return whether another trial may begin."""
        from optuna.trial import TrialState

        begun = self._count()
        found = [index for index, generation in enumerate(self._generations) if generation.start == begun and index]
        if not found:
            return True
        former, size = self._generations[found[0] - 1], self._generations[found[0]].size
        trials = self._study.get_trials(deepcopy=False)
        # More have been planned, also when an engine was killed while it planned them.
        planned_before = len(trials) - begun
        if planned_before == size:
            return True
        if self._running:
            return False
        complete = [trial for trial in trials[former.start : begun] if trial.state == TrialState.COMPLETE]
        if not complete:
            raise ProcessFailedError(f"sweep: all trials of the generation before trial {begun} have failed")
        last = {trial.number: trial.intermediate_values[max(trial.intermediate_values)] for trial in complete}
        ranked = sorted(complete, key=lambda trial: last[trial.number], reverse=self._options.is_maximized)
        members = [PopulationMember(trial.number, trial.params) for trial in ranked]
        planned = plan_generation(members, former, size, self._space, self._options)
        for parameters, source in planned[planned_before:]:
            self._study.enqueue_trial(parameters, user_attrs={studies.SOURCE_ATTRIBUTE: source})
        return True

    def _adopt(self) -> None:
        """Go on with an earlier engine's trials, and delete jobs that it has not deleted."""
        from optuna.trial import TrialState

        names = self._jobs.list_names()
        for found in self._study.get_trials(deepcopy=False):
            name = found.user_attrs.get(studies.JOB_ATTRIBUTE)
            if found.state.is_finished() and name in names:
                self._jobs.end(name)
        for found in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            running = self._begin(studies.adopt_trial(self._study, self._options, self._folder, found.number))
            if not running.seed:
                running.values.update(found.intermediate_values)

    def _begin(self, trial: Trial, started: float | None = None) -> _Running:
        """Start a trial's next job; a job that an earlier engine has started is followed."""
        parameters = self._space.suggest(trial)
        seed = len(trial.user_attrs.get(studies.SEEDS_ATTRIBUTE, ()))
        if seed:
            # An engine that was killed may have left it.
            self._jobs.end(self._name_job(trial.number, seed - 1))
        if self._options.seeds > 1:
            parameters["seed"] = self._first_seed + seed
        source = trial.user_attrs.get(studies.SOURCE_ATTRIBUTE)
        for generation in self._generations:
            if trial.number >= generation.start:
                parameters["epochs"] = generation.epochs
        slot = min(set(range(self._options.parallel)) - {running.slot for running in self._running}, default=0)
        job = TrialJob(
            number=trial.number,
            name=self._name_job(trial.number, seed),
            parameters=parameters,
            output=studies.name_output(self._description, self._folder, trial.number, seed),
            source="" if source is None else studies.name_output(self._description, self._folder, source),
            slot=slot,
            slots=self._options.parallel,
            timeout=self._options.trial_timeout,
        )
        trial.set_user_attr(studies.JOB_ATTRIBUTE, job.name)
        # Both before the job: the next engine finds the parameters of each job that exists, and none is left running.
        self._jobs.save()
        running = _Running(trial, job, seed, slot, started or time.monotonic())
        self._running.append(running)
        self._jobs.start(job)
        self._interrupts.raise_pending()
        return running

    def _name_job(self, number: int, seed: int) -> str:
        return f"{self._description['name']}-{number}" + (f"-seed{seed}" if seed else "")

    def _follow(self, running: _Running) -> None:
        """Report a trial's new epochs, and end the trial when the job has ended or the pruner stops it."""
        try:
            state = self._jobs.read(running.job)
        except NotFoundError:
            self._finish(running, "its job was deleted")
            return
        except UnreachableError:
            return
        for record in state.records:
            # A cluster's later report on an epoch has no loss.
            running.records[record["epoch"]] = {**running.records.get(record["epoch"], {}), **record}
        values = {epoch: self._options.read_value(record) for epoch, record in running.records.items()}
        new = {epoch: value for epoch, value in values.items() if value is not None and epoch not in running.values}
        # Optuna has intermediate values, and prunes, with one objective only.
        is_reported = not running.seed and not self._options.objectives
        is_pruned = False
        for epoch, value in sorted(new.items()):
            running.values[epoch] = value
            if not math.isfinite(value):
                self._finish(running, f"{self._options.objective} is {value} in epoch {epoch}")
                return
            if is_reported:
                running.trial.report(value, epoch)
                # After each: pruners compare trials at the same epoch, however many were read at once.
                is_pruned = running.trial.should_prune() or is_pruned
        if new and self._options.objectives:
            running.trial.set_user_attr(studies.EPOCHS_ATTRIBUTE, len(running.values))
        if state.phase == "failed":
            self._finish(running, state.reason)
        elif state.phase == "succeeded":
            self._complete(running, state)
        elif is_pruned:
            self._finish(running, "", is_pruned=True)

    def _complete(self, running: _Running, state: TrialJobState) -> None:
        """End a trial, or start the next seed."""
        if not running.values:
            self._finish(running, self._explain_missing(state))
            return
        best = studies.choose_best(running.values.values(), self._options.is_maximized)
        epoch = next(epoch for epoch, value in running.values.items() if value == best)
        values = [self._measure(name, epoch, running) for name in self._options.directions]
        for name, value in zip(self._options.directions, values, strict=True):
            if value is None or not math.isfinite(value):
                self._finish(running, f"no epoch of it has reported a number as {name!r}")
                return
        seeds = [*running.trial.user_attrs.get(studies.SEEDS_ATTRIBUTE, ()), values]
        running.trial.set_user_attr(studies.SEEDS_ATTRIBUTE, seeds)
        if len(seeds) < self._options.seeds:
            self._running.remove(running)
            self._begin(running.trial, running.started)
            return
        self._finish(running, "", values=[statistics.fmean(column) for column in zip(*seeds, strict=True)])

    def _measure(self, name: str, epoch: int, running: _Running) -> float | None:
        """Return the best epoch's objective, or that from the last epoch that has reported it."""
        if name == self._options.objective:
            return running.values[epoch]
        found = [file for file in Path(running.job.output, "checkpoint").rglob("*") if file.is_file()]
        if name == CHECKPOINT_BYTES and found:
            return float(sum(file.stat().st_size for file in found))
        records = [running.records.get(epoch, {}), *reversed(running.records.values())]
        return next(
            (value for record in records if (value := self._options.read_value(record, name)) is not None), None
        )

    def _explain_missing(self, state: TrialJobState) -> str:
        """Return why a trial that has succeeded has no value."""
        found = {name for record in state.records for name in record.get("validation") or {}}
        found |= {"loss"} & {name for record in state.records for name in record}
        reported = f"they have {', '.join(sorted(found))}" if found else f"{len(state.records)} epochs in metrics.jsonl"
        return f"no epoch of it has reported {self._options.objective!r} ({reported})"

    def _finish(
        self, running: _Running, reason: str, *, is_pruned: bool = False, values: list[float] | None = None
    ) -> None:
        from optuna.trial import TrialState

        running.trial.set_user_attr(studies.SECONDS_ATTRIBUTE, round(time.monotonic() - running.started, 3))
        if reason:
            running.trial.set_user_attr(studies.REASON_ATTRIBUTE, reason)
        state = TrialState.COMPLETE if values else TrialState.PRUNED if is_pruned else TrialState.FAIL
        # The trial before its job: an engine killed between the two finds the job of an ended trial, and deletes it.
        self._study.tell(running.trial, values, state=state)
        self._jobs.save()
        self._jobs.end(running.job.name)
        self._running.remove(running)
        self._on_trial(studies.read_sweep(self._folder).trials[running.trial.number])
        self._failures = 0 if running.values else self._failures + 1
        if self._failures == min(_FAILURES, self._trials):
            raise ProcessFailedError(
                f"sweep: the last {self._failures} trials failed before an epoch: {reason}",
                hint="After a change, go on with the sweep, or start another one.",
            )
        is_pruning = self._options.pruner != "none" and not self._generations and not self._options.objectives
        if len(running.values) == 1 and state == TrialState.COMPLETE and is_pruning:
            warnings.warn(
                f"pruner: {self._options.pruner} stops no trial: trial {running.trial.number} has reported one epoch",
                stacklevel=2,
            )
