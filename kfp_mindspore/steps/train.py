"""What runs inside a step that makes an MSJob: it submits the job, shows its log, waits, and reads what it wrote."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import ProcessFailedError, ValidationError
from kfp_mindspore.formats.checkpoint import DESCRIPTION as CHECKPOINT_DESCRIPTION
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.settings import (
    CHECKPOINT_VARIABLE,
    DATASET_VARIABLE,
    OUTPUT_VARIABLE,
    PLACEHOLDER_IMAGE,
    get_image,
    get_namespace,
)
from kfp_mindspore.steps.arguments import spell_hyperparameters, spell_value
from kfp_mindspore.steps.options import JobOptions

CHECKPOINT_FOLDER = "checkpoint"
# A DNS label that leaves room for `-scheduler-0` behind it.
_MAXIMUM_NAME = 51


@dataclass(frozen=True)
class TrainingResult:
    """What a training job did.

    Args:
        job_name: Name of the job.
        namespace: Its namespace.
        workers: Number of workers it had.
        command: The workers' command with all its arguments.
        hyperparameters: Those that were given by name.
        metrics: Newest value of each metric in metrics.jsonl.
        checkpoint: The final checkpoint; None when the command wrote none.
    """

    job_name: str
    namespace: str
    workers: int
    command: tuple[str, ...]
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None


def run_training(
    output_dir: str,
    *,
    command: Sequence[Any],
    args: Sequence[Any] = (),
    hyperparameters: Mapping[str, Any] | None = None,
    dataset_dir: str = "",
    checkpoint_dir: str = "",
    job_name: str = "",
    namespace: str = "",
    image: str = "",
    workers: int = 1,
    env: Mapping[str, Any] | None = None,
    restart_policy: str = "ExitCode",
    backoff_limit: int = 3,
    active_deadline_seconds: int = 0,
) -> TrainingResult:
    """Run a command as an MSJob, wait for its end and read what it wrote.

    Args:
        output_dir: Directory for what the job writes; made when missing.
        command: The command of each worker.
        args: Its arguments.
        hyperparameters: Further arguments by name, see `spell_hyperparameters`.
        dataset_dir: Directory of the data; empty for none.
        checkpoint_dir: Directory of checkpoints that stays; empty for one beside the output that is removed at the end.
        job_name: Name of the job; empty for one made from the output directory.
        namespace: Namespace of the job; empty for the step's own.
        image: Image of the workers; empty for this package's.
        workers: Number of workers.
        env: Environment variables of the workers.
        restart_policy: `Always`, `OnFailure`, `Never` or `ExitCode`.
        backoff_limit: Number of restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is ended and fails; 0 for no limit.

    Returns:
        The job's name, metrics and final checkpoint.

    Raises:
        ValidationError: An argument is wrong; the message names it.
        ProcessFailedError: The job failed (its last lines were printed or are in the message), or wrote nothing.
    """
    if not command:
        raise ValidationError(["command: must have at least one part, got []"], subject="train_msjob")
    output = Path(output_dir).absolute()
    output.mkdir(parents=True, exist_ok=True)
    checkpoints = Path(checkpoint_dir or output.parent / f"{output.name}.checkpoints").absolute()
    checkpoints.mkdir(parents=True, exist_ok=True)
    directories = {OUTPUT_VARIABLE: str(output), CHECKPOINT_VARIABLE: str(checkpoints)}
    if dataset_dir:
        directories[DATASET_VARIABLE] = str(Path(dataset_dir).absolute())
    options = JobOptions(
        workers=workers,
        backoff_limit=backoff_limit,
        active_deadline_seconds=active_deadline_seconds or None,
        restart_policy=restart_policy,
        env={name: spell_value(value) for name, value in (env or {}).items()},
    )
    parts = [spell_value(part) for part in (*command, *args)] + spell_hyperparameters(hyperparameters or {})
    name = job_name or name_job("train", str(output))
    namespace = namespace or get_namespace() or "default"
    options = launch_job(
        name, parts, options, directories, namespace=namespace, image=image, replace_running=not job_name
    )
    if not checkpoint_dir:
        shutil.rmtree(checkpoints, ignore_errors=True)
    if not any(output.iterdir()):
        raise ProcessFailedError(
            f"job {name} succeeded, but wrote nothing",
            hint=f"The command has to write what it made into the directory that {OUTPUT_VARIABLE} names.",
        )
    final = output / CHECKPOINT_FOLDER
    return TrainingResult(
        job_name=name,
        namespace=namespace,
        workers=options.workers or 1,
        command=tuple(parts),
        hyperparameters=dict(hyperparameters or {}),
        metrics=_read_metrics(output),
        checkpoint=Checkpoint.open(final, verify=False) if (final / CHECKPOINT_DESCRIPTION).is_file() else None,
    )


def launch_job(
    name: str,
    command: Sequence[str],
    options: JobOptions,
    directories: Mapping[str, str],
    *,
    namespace: str,
    image: str = "",
    replace_running: bool = False,
) -> JobOptions:
    """Submit a job, show its log and wait for its end.

    Args:
        name: Name of the job. One of this name that has ended is replaced.
        command: The workers' command with all its arguments.
        options: What the step decides; what setters have set on the task goes before it.
        directories: The training contract's variables; they go before `options.env`.
        namespace: Namespace of the job.
        image: Image of the workers; empty for this package's.
        replace_running: Whether a job of this name that still runs is replaced too, because it can only be what an
            earlier attempt of this step left.

    Returns:
        The options the job was made with.

    Raises:
        ValidationError: The job is invalid; the message names the field.
        AlreadyExistsError: A job of this name runs.
        ProcessFailedError: The job failed; its last lines were printed or are in the message.
    """
    from kfp_mindspore.msjob import MSJob, MSJobClient, build_msjob, run_job

    options = options.merge(**vars(JobOptions.from_environment()))
    built = build_msjob(
        name,
        command=list(command),
        image=get_image(image) or PLACEHOLDER_IMAGE,
        workers=1 if options.workers is None else options.workers,
        namespace=namespace,
        env={**options.env, **directories},
        resources=options.resources or None,
        **{
            option: value
            for option in (
                "restart_policy",
                "backoff_limit",
                "active_deadline_seconds",
                "ttl_seconds_after_finished",
                "clean_pod_policy",
            )
            if (value := getattr(options, option)) is not None
        },
    )
    document = built.to_dict()
    if options.success_policy is not None:
        document["spec"]["successPolicy"] = "" if options.success_policy == "Default" else options.success_policy
    for key, entries in (("labels", options.labels), ("annotations", options.annotations)):
        if entries:
            document["metadata"][key] = {**(document["metadata"].get(key) or {}), **entries}
    client = MSJobClient(namespace=namespace)
    _remove_previous(client, name, replace_running)
    printed: set[str] = set()
    try:
        run_job(client, MSJob.from_dict(document), on_log=functools.partial(_print_line, printed))
    except ProcessFailedError as error:
        if printed.issuperset(error.log):
            # They stand just above, in the step's own log; another worker's do not.
            raise ProcessFailedError(error.message) from None
        raise
    return options


def name_job(prefix: str, seed: str) -> str:
    """Return a job's name, a DNS label of at most 51 characters: the same for the same prefix and seed.

    Args:
        prefix: What it does, such as a function's name.
        seed: What tells it from others, such as the directory of its output: a retried step finds its own job again.
    """
    digest = hashlib.sha256(seed.encode()).hexdigest()[:10]
    head = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")
    head = head if head[:1].isalpha() else f"job-{head}"
    return f"{head[: _MAXIMUM_NAME - len(digest) - 1].strip('-')}-{digest}"


def _print_line(printed: set[str], line: str) -> None:
    printed.add(line)
    print(line, flush=True)


def _remove_previous(client: Any, name: str, replace_running: bool) -> None:
    from kfp_mindspore.errors import NotFoundError

    try:
        client.get_job(name)
    except NotFoundError:
        return
    if replace_running or client.is_job_succeeded(name) or client.is_job_failed(name):
        client.delete_job(name)


def _read_metrics(output: Path) -> dict[str, float]:
    from kfp_mindspore.training.history import METRICS_FILE, read_history

    newest: dict[str, float] = {}
    for record in read_history(output / METRICS_FILE):
        newest.update(_flatten(record))
    return newest


def _flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    values: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            values.update(_flatten(value, f"{prefix}{name}."))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            values[prefix + name] = value
    return values
