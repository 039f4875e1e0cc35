"""The step that trains a model by an MSJob."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, ValidationError
from kfp_mindspore.evaluation.curves import parse_records, read_records, render_curves
from kfp_mindspore.files import copy_directory, resolve_location, write_text
from kfp_mindspore.formats.checkpoint import DESCRIPTION, Checkpoint
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.options import to_text
from kfp_mindspore.settings import (
    CHECKPOINT_VARIABLE,
    DATASET_VARIABLE,
    KUBERNETES,
    METRICS_FILE,
    OUTPUT_VARIABLE,
    get_backend_name,
    get_namespace,
)
from kfp_mindspore.steps.handover.checkpoints import StepCheckpoints
from kfp_mindspore.steps.handover.storage import JobStorage, open_storage
from kfp_mindspore.steps.handover.storage_spec import parse_storage
from kfp_mindspore.steps.handover.task_config import read_task_config
from kfp_mindspore.steps.launch.arguments import parse_number, parse_numbers, to_metadata
from kfp_mindspore.steps.launch.job import launch_job
from kfp_mindspore.steps.launch.options import merge_task_options
from kfp_mindspore.stores.artifact_store import StoreError, join_uri

if TYPE_CHECKING:
    from kfp import dsl

CHECKPOINT_FOLDER = "checkpoint"
_OUTPUT = "model/"


@dataclass(frozen=True)
class TrainingResult:
    """A training job's result.

    Args:
        job_name: Job name.
        namespace: Job namespace.
        workers: Worker count.
        command: Worker command with all arguments.
        hyperparameters: Hyperparameters by name.
        metrics: Each metric's last value in metrics.jsonl.
        history: The epochs' records in metrics.jsonl.
        checkpoint: The final checkpoint; None if the command wrote none.
    """

    job_name: str
    namespace: str
    workers: int
    command: tuple[str, ...]
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    checkpoint: Checkpoint | None = None


class LocalTrainingFiles:
    """This machine's directories.

    Args:
        output_dir: Output directory.
        dataset_dir: Dataset directory; empty for none.
        checkpoint_dir: Checkpoint directory; empty for one that is deleted once the job, or the run, has succeeded.
        command: Worker command with all arguments.
    """

    def __init__(
        self, output_dir: str, dataset_dir: str = "", checkpoint_dir: str = "", command: Sequence[str] = ()
    ) -> None:
        self._output = Path(output_dir).absolute()
        self._output.mkdir(parents=True, exist_ok=True)
        self._own: StepCheckpoints | None = None
        if checkpoint_dir:
            checkpoints = resolve_location(checkpoint_dir)
            if "://" not in checkpoints:
                Path(checkpoints).mkdir(parents=True, exist_ok=True)
        else:
            beside = self._output.parent / f"{self._output.name}.checkpoints"
            self._own = StepCheckpoints(beside, [[parse_number(word) for word in command], dataset_dir])
            checkpoints = str(self._own.path)
        self.patch = PodPatch()
        self.wrapper: tuple[str, ...] = ()
        self.explain_failures = contextlib.nullcontext
        self.directories = {OUTPUT_VARIABLE: str(self._output), CHECKPOINT_VARIABLE: checkpoints}
        if dataset_dir:
            self.directories[DATASET_VARIABLE] = str(Path(dataset_dir).absolute())

    def read_epochs(self) -> list[dict[str, Any]]:
        """Return the epochs in metrics.jsonl."""
        file = self._output / METRICS_FILE
        return read_records(file) if file.is_file() else []

    def get_size(self, folder: str) -> int:
        """Return a folder's size in bytes; 0 for a missing one."""
        return sum(file.stat().st_size for file in (self._output / folder).rglob("*") if file.is_file())

    def copy(self, target: str, folder: str = "", *, without: str = "") -> None:
        """Copy the output, or a folder in it, to a directory; a missing one is no error.

        Args:
            target: The directory, which is replaced.
            folder: The folder.
            without: Name of a folder that is left out.
        """
        copy_directory(self._output / folder, Path(target), without=without)

    def collect(self) -> Path | None:
        """Delete temporary checkpoints and return the output directory."""
        if self._own is not None:
            self._own.delete()
        return self._output if any(self._output.iterdir()) else None

    def read_checkpoint(self, directory: Path) -> Checkpoint | None:
        """Return the final checkpoint."""
        final = directory / CHECKPOINT_FOLDER
        return Checkpoint.open(final, verify=False) if (final / DESCRIPTION).is_file() else None


class ArtifactTrainingFiles:
    """The job pods' directories, whose output is below an artifact's URI; only small files are read here.

    Args:
        storage: How the pods and this process access the artifacts.
        output: The output directory's name in `storage`.
        output_uri: The output directory's URI.
        dataset_uri: Dataset URI; empty for none.
    """

    def __init__(self, storage: JobStorage, output: str, output_uri: str, dataset_uri: str = "") -> None:
        self._storage = storage
        self._uri = output_uri
        self.patch = storage.patch
        self.wrapper = storage.wrapper
        self.explain_failures = storage.explain_failures
        self.directories = {
            OUTPUT_VARIABLE: storage.outputs[output],
            CHECKPOINT_VARIABLE: storage.checkpoint_dir,
            **({DATASET_VARIABLE: storage.inputs[dataset_uri]} if dataset_uri else {}),
        }

    def read_epochs(self) -> list[dict[str, Any]]:
        """Return the epochs in metrics.jsonl.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        content = self._storage.artifacts.read_bytes(join_uri(self._uri, METRICS_FILE))
        return parse_records((content or b"").decode(errors="replace"))

    def get_size(self, folder: str) -> int:
        """Return a folder's size in bytes; 0 for a missing one.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        return sum(self._storage.artifacts.list_files(join_uri(self._uri, folder)).values())

    def copy(self, target: str, folder: str = "", *, without: str = "") -> None:
        """Copy the output, or a folder in it, in the store; a missing one is no error.

        Args:
            target: URI.
            folder: The folder.
            without: Name of a folder that is left out.

        Raises:
            StoreError: The store cannot be reached or denies the request.
        """
        self._storage.artifacts.copy(join_uri(self._uri, folder) if folder else self._uri, target, without=without)

    def collect(self) -> Path | None:
        """Download metrics.jsonl and the final checkpoint's description.

        Raises:
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        store = self._storage.artifacts
        directory = Path(tempfile.mkdtemp(prefix="kfp-mindspore-"))
        try:
            if not store.list_files(self._uri):
                return None
            for name in (METRICS_FILE, f"{CHECKPOINT_FOLDER}/{DESCRIPTION}"):
                content = store.read_bytes(join_uri(self._uri, name))
                if content is not None:
                    file = directory / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(content)
        except StoreError as error:
            raise KfpMindSporeError(f"the job has succeeded, but {error}") from error
        return directory

    def read_checkpoint(self, directory: Path) -> Checkpoint | None:
        """Return the final checkpoint; the path has only the description."""
        final = directory / CHECKPOINT_FOLDER
        return Checkpoint.read_description(final) if final.is_dir() else None


def train_model(
    model: dsl.Model,
    metrics: dsl.Metrics,
    curves: dsl.HTML,
    command: Sequence[Any],
    options: JobOptions,
    *,
    dataset: dsl.Dataset | None = None,
    args: Sequence[Any] = (),
    hyperparameters: Mapping[str, Any] | None = None,
    checkpoint_dir: str = "",
    job_name: str = "",
    namespace: str = "",
    task_config: dsl.TaskConfig | None = None,
) -> TrainingResult:
    """Run a training job, wait until it has finished, describe it in the model's metadata and log metrics.

    Args:
        model: Output artifact; the path is the job's output directory, created if missing.
        metrics: Receives each metric's last value in metrics.jsonl.
        curves: Receives the page with the metrics by epoch.
        command: Each worker's command.
        options: The job's options; those that the pipeline has set on the task take precedence.
        dataset: The dataset directory; None for none.
        args: Command arguments.
        hyperparameters: Further arguments by name, see `to_arguments`.
        checkpoint_dir: Persistent checkpoint directory, on a cluster a URI or a directory in a volume; empty for one
            beside the output that is deleted at the end.
        job_name: Job name; empty for one derived from the output root.
        namespace: Job namespace; empty for the step's.
        task_config: What the pipeline has set on the task, for the job pods.

    Raises:
        ValidationError: An argument is invalid; the message names it.
        ProcessFailedError: The job failed, or the output directory is empty.
    """
    if not command:
        raise ValidationError(["command: must have at least one part, got []"], subject="train_msjob")
    options = merge_task_options(options)
    root = model.uri.rstrip("/").rpartition("/")[0]
    parts = [to_text(part) for part in (*command, *args)] + to_arguments(hyperparameters or {})
    pod = read_task_config(task_config)
    files = open_files(
        options.storage,
        root=root,
        output_dir=model.path,
        output_uri=model.uri,
        dataset=dataset,
        checkpoint_dir=checkpoint_dir,
        command=parts,
        patch=pod,
        namespace=namespace,
    )
    namespace = namespace or get_namespace() or "default"
    with files.explain_failures():
        name = launch_job(
            root,
            [*files.wrapper, *parts],
            options,
            name=job_name,
            namespace=namespace,
            env=files.directories,
            pod=pod.merge(files.patch),
        )
    described = TrainingResult(name, namespace, options.workers, tuple(parts), parse_numbers(hyperparameters or {}))
    result = read_result(files, described)
    describe_model(model, metrics, result)
    write_text(Path(curves.path), render_curves(f"Job {name}", {name: result.history}))
    return result


def describe_model(model: dsl.Model, metrics: dsl.Metrics, result: TrainingResult) -> None:
    """Describe a training job in the model's metadata and log metrics."""
    model.metadata.update(
        framework="mindspore",
        job=result.job_name,
        namespace=result.namespace,
        workers=result.workers,
        command=to_metadata(result.command),
        hyperparameters=to_metadata(result.hyperparameters),
    )
    if result.checkpoint is not None:
        model.metadata.update(
            framework_version=result.checkpoint.mindspore_version,
            network=to_metadata(vars(result.checkpoint.network)),
            epoch=result.checkpoint.epoch,
            step=result.checkpoint.step,
            seed=result.checkpoint.seed,
        )
    for name, value in result.metrics.items():
        metrics.log_metric(name, value)


def read_result(files: LocalTrainingFiles | ArtifactTrainingFiles, result: TrainingResult) -> TrainingResult:
    """Return a succeeded job's result with what is in the output.

    Args:
        files: The job's files.
        result: The result without metrics and checkpoint.

    Raises:
        ProcessFailedError: The output directory is empty.
    """
    collected = files.collect()
    if collected is None:
        raise ProcessFailedError(
            f"job {result.job_name}: succeeded, but its output directory is empty",
            hint=f"The command must write its output to the directory in {OUTPUT_VARIABLE}.",
        )
    return dataclasses.replace(
        result,
        metrics=_read_metrics(collected),
        history=_read_epochs(collected),
        checkpoint=files.read_checkpoint(collected),
    )


def open_files(
    storage: str,
    *,
    root: str,
    output_dir: str,
    output_uri: str,
    dataset: dsl.Dataset | None,
    checkpoint_dir: str,
    command: Sequence[str],
    patch: PodPatch,
    namespace: str,
) -> LocalTrainingFiles | ArtifactTrainingFiles:
    """Return a training job's files on this machine or in pods.

    Args:
        storage: How data reach the pods on a cluster.
        root: The step's output root, see `make_job_name`.
        output_dir: Output directory for a job on this machine.
        output_uri: Output URI, which a job's pods on a cluster write.
        dataset: The dataset directory; None for none.
        checkpoint_dir: Persistent checkpoint directory, see `train_model`.
        command: Worker command with all arguments.
        patch: Additions to the job pods.
        namespace: Job namespace; empty for the step's.

    Raises:
        ValidationError: The storage is invalid.
    """
    parse_storage(storage)
    dataset_dir, dataset_uri = (dataset.path, dataset.uri) if dataset else ("", "")
    if get_backend_name() != KUBERNETES:
        return LocalTrainingFiles(output_dir, dataset_dir, checkpoint_dir, command)
    opened = open_storage(
        storage,
        root=root,
        inputs={dataset_uri: dataset_dir} if dataset_uri else {},
        outputs={_OUTPUT: output_uri},
        job_namespace=namespace,
        checkpoint_dir=checkpoint_dir,
        patch=patch,
    )
    return ArtifactTrainingFiles(opened, _OUTPUT, output_uri, dataset_uri)


def to_arguments(values: Mapping[str, Any]) -> list[str]:
    """Convert named values to command-line options.

    {"epochs": 5, "learning_rate": 0.01, "nesterov": True} becomes `--epochs 5 --learning-rate 0.01 --nesterov`. False
    and None omit the option. A pipeline parameter inside a dict arrives as text: `5.0` becomes `5`. Options are sorted
    by name: KFP's struct has no order, and each attempt at a step has to have the same command.

    Args:
        values: Values by name, JSON types.
    """
    parts: list[str] = []
    for name, value in sorted(values.items()):
        if value is None or value is False:
            continue
        parts.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        is_integer = isinstance(value, str) and re.fullmatch(r"-?\d{1,15}\.0", value)
        parts.append(str(value).removesuffix(".0") if is_integer else to_text(value))
    return parts


def _read_metrics(output: Path) -> dict[str, float]:
    from kfp_mindspore.training.history import read_history

    last: dict[str, float] = {}
    for record in read_history(output / METRICS_FILE):
        last.update(_flatten(record))
    return last


def _read_epochs(output: Path) -> list[dict[str, Any]]:
    path = output / METRICS_FILE
    return read_records(path) if path.is_file() else []


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            values.update(_flatten(value, f"{prefix}{name}."))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            values[prefix + name] = value
    return values
