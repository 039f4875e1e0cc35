"""The step that sweeps a training's parameters: each trial an MSJob, the best one's checkpoint the model."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.evaluation.curves import render_curves
from kfp_mindspore.files import write_text
from kfp_mindspore.local.interrupts import Interrupts
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.options import to_text
from kfp_mindspore.settings import (
    KUBERNETES,
    MLFLOW_PARENT_VARIABLE,
    MLFLOW_RUN_VARIABLE,
    get_backend_name,
    get_namespace,
)
from kfp_mindspore.steps.handover.checkpoints import StepCheckpoints
from kfp_mindspore.steps.handover.job_name import make_job_name
from kfp_mindspore.steps.handover.storage import open_storage
from kfp_mindspore.steps.handover.task_config import read_task_config
from kfp_mindspore.steps.launch.arguments import parse_numbers, to_metadata
from kfp_mindspore.steps.launch.job import StepJobs
from kfp_mindspore.steps.launch.options import merge_task_options
from kfp_mindspore.steps.launch.train import TrainingResult, describe_model, open_files, read_result, to_arguments
from kfp_mindspore.steps.launch.trials import StepTrials, StoredStudy, TrainingFiles
from kfp_mindspore.stores.artifact_store import ArtifactStore, join_uri
from kfp_mindspore.sweeps.engine import sweep
from kfp_mindspore.sweeps.jobs import CHECKPOINTS_FOLDER
from kfp_mindspore.sweeps.options import SweepOptions
from kfp_mindspore.sweeps.report import describe_trial, rank_trials, render_report, render_table, select_histories
from kfp_mindspore.sweeps.space import Space, parse_space
from kfp_mindspore.sweeps.study import TRIALS_FOLDER

if TYPE_CHECKING:
    from kfp import dsl

_SWEEP_FOLDER = "sweep"
# The engine's jobs start with 36 characters of its directory's name: the digest, of 12, is one of them.
_TASK_LENGTH = 23


class Outputs(NamedTuple):
    """The step's output parameters.

    Args:
        best_parameters: The best trial's parameters, without those that all trials share.
        best_value: The best trial's objective.
    """

    best_parameters: dict[str, Any]
    best_value: float


@dataclass(frozen=True)
class _Place:
    """Where a sweep's study and outputs are.

    Args:
        root: What identifies the step's jobs.
        directory: The engine's directory.
        output: URI of the trials' outputs; empty for the engine's directory.
        study: The study in the store; None on this machine.
        store: The store; None on this machine.
    """

    root: str
    directory: Path
    output: str = ""
    study: StoredStudy | None = None
    store: ArtifactStore | None = None

    def delete_checkpoints(self) -> None:
        """Delete the checkpoints in the store, from which no trial goes on any more."""
        for name in self.store.list_files(self.output) if self.store is not None else ():
            if f"/{CHECKPOINTS_FOLDER}/" in name and self.store is not None:
                self.store.delete(join_uri(self.output, name))


def sweep_models(
    model: dsl.Model,
    metrics: dsl.Metrics,
    curves: dsl.HTML,
    report: dsl.HTML,
    trial_table: dsl.Markdown,
    command: Sequence[Any],
    space: str,
    sweep_options: SweepOptions,
    job_options: JobOptions,
    *,
    dataset: dsl.Dataset | None = None,
    args: Sequence[Any] = (),
    hyperparameters: Mapping[str, Any] | None = None,
    namespace: str = "",
    task_config: dsl.TaskConfig | None = None,
) -> Outputs:
    """Run a sweep's trials as MSJobs and write the best one's output to the model; a step retry goes on with it.

    Args:
        model: Receives the best trial's output, described in the metadata.
        metrics: Receives each metric's last value, from the best trial.
        curves: Receives the page with the best trials' metrics by epoch.
        report: Receives the sweep's report.
        trial_table: Receives the trials as a table.
        command: Each worker's command.
        space: The space as YAML or JSON.
        sweep_options: The sweep's options.
        job_options: Each trial's; those that the pipeline has set on the task take precedence.
        dataset: The dataset directory; None for none.
        args: Command arguments.
        hyperparameters: Further arguments by name that all trials share.
        namespace: Job namespace; empty for the step's.
        task_config: What the pipeline has set on the task, for the job pods.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        NotFoundError: No trial is complete.
        ProcessFailedError: The trials fail alike.
    """
    job_options = merge_task_options(job_options)
    if not command:
        raise ValidationError(["command: must have at least one part, got []"], subject="sweep_msjob")
    parameters = Space(parse_space(space, "space"))
    parts = [to_text(part) for part in (*command, *args)]
    shared = dict(hyperparameters or {})
    pod = nest_mlflow_runs(read_task_config(task_config))
    namespace = namespace or get_namespace() or "default"
    template = {
        "command": parts,
        "trainer_parameters": parse_numbers(shared),
        "dataset": dataset.path if dataset else "",
    }
    identity = [template, parameters.to_dict(), dataclasses.asdict(sweep_options)]

    def open_output(output: str) -> TrainingFiles:
        return open_files(
            job_options.storage,
            root=output,
            output_dir=output,
            output_uri=output,
            dataset=dataset,
            checkpoint_dir=f"{output}/{CHECKPOINTS_FOLDER}",
            command=parts,
            patch=pod,
            namespace=namespace,
        )

    with Interrupts(), _open_place(model, job_options.storage, identity) as place:
        found = sweep(
            template,
            parameters,
            sweep_options,
            directory=place.directory,
            output=place.output,
            jobs=StepTrials(
                StepJobs(place.root, namespace),
                job_options,
                lambda trial: [*parts, *to_arguments({**shared, **trial.parameters})],
                open_output,
                pod=pod,
                study=place.study,
            ),
            on_trial=lambda trial: print(describe_trial(trial), flush=True),
        )
        best = found.best
        files = {trial.number: open_output(trial.output) for trial in rank_trials(found)}
        histories = {number: opened.read_epochs() for number, opened in files.items()}
        arguments = {**shared, **best.parameters}
        result = TrainingResult(
            job_name=best.job,
            namespace=namespace,
            workers=job_options.workers,
            command=(*parts, *to_arguments(arguments)),
            hyperparameters=parse_numbers(arguments),
        )
        describe_model(model, metrics, read_result(files[best.number], result))
        files[best.number].copy(model.path if place.store is None else model.uri, without=CHECKPOINTS_FOLDER)
        write_text(Path(report.path), render_report(found, histories))
        write_text(Path(trial_table.path), render_table(found))
        place.delete_checkpoints()
    page = render_curves(f"Best trials of {place.directory.name}", select_histories(rank_trials(found), histories))
    write_text(Path(curves.path), page)
    lineage = {"trial": best.number, "parameters": to_metadata(best.parameters), "objective": sweep_options.objective}
    model.metadata.update(lineage, objective_value=best.value)
    return Outputs(dict(best.parameters), float(best.value or 0.0))


def nest_mlflow_runs(pod: PodPatch) -> PodPatch:
    """Return additions to the trials' pods by which each trial has a separate MLflow run in the step's run.

    In one run, the points of all trials but the first would count as logged before.

    Args:
        pod: The additions that the pipeline has set.
    """
    env = [
        {**entry, "name": MLFLOW_PARENT_VARIABLE} if entry["name"] == MLFLOW_RUN_VARIABLE else entry
        for entry in pod.env
    ]
    return dataclasses.replace(pod, env=env)


@contextlib.contextmanager
def _open_place(model: dsl.Model, storage: str, identity: Sequence[Any]) -> Iterator[_Place]:
    """Yield a sweep's place: on this machine one that a resumed run finds, on a cluster one that a step retry finds."""
    if get_backend_name() != KUBERNETES:
        checkpoints = StepCheckpoints(Path(model.path).absolute().parent / _SWEEP_FOLDER, identity)
        directory = checkpoints.path / _name_sweep(str(checkpoints.path))
        yield _Place(str(directory), directory)
        checkpoints.delete()
        return
    root = model.uri.rstrip("/").rpartition("/")[0]
    store = open_storage(storage, root=root, inputs={}, outputs={"model/": model.uri}).artifacts
    uri = join_uri(root, _SWEEP_FOLDER)
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-") as temporary:
        directory = Path(temporary, _name_sweep(root))
        study = StoredStudy(store, uri, directory)
        study.load()
        yield _Place(root, directory, join_uri(uri, TRIALS_FOLDER), study, store)


def _name_sweep(root: str) -> str:
    """Return the name of a step's sweep, short enough for job names."""
    task, _, digest = make_job_name(root).rpartition("-")
    return f"{task[:_TASK_LENGTH].strip('-')}-{digest}"
