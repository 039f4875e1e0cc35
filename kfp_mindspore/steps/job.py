"""The launcher of a step's MSJob: submit, print the log, wait."""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kfp_mindspore.errors import NotFoundError, ProcessFailedError
from kfp_mindspore.settings import PLACEHOLDER_IMAGE, get_image
from kfp_mindspore.steps.options import JobOptions

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJobClient

# A DNS label with room for the suffix `-scheduler-0`.
_MAXIMUM_NAME = 51
# More than the lines of a failed job's error.
_KEPT_LINES = 100


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
    """Submit a job, print its log and wait until it has finished.

    Args:
        name: Name of the job. A finished job of this name is replaced.
        command: Command of the workers with all arguments.
        options: The step's options; those set by task setters take precedence.
        directories: Variables of the training contract; they take precedence over `options.env`.
        namespace: Namespace of the job.
        image: Image of the workers; empty for this package's.
        replace_running: Also replace a running job of this name, which an earlier attempt of this step has left.

    Returns:
        The merged options of the job.

    Raises:
        ValidationError: The job is invalid; the message names the field.
        AlreadyExistsError: A job of this name is running.
        ProcessFailedError: The job failed; its last lines have been printed or are in the message.
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
    _delete_previous(client, name, replace_running)
    printed: deque[str] = deque(maxlen=_KEPT_LINES)

    def print_line(line: str) -> None:
        printed.append(line)
        print(line, flush=True)

    try:
        run_job(client, MSJob.from_dict(document), on_log=print_line)
    except ProcessFailedError as error:
        if set(printed).issuperset(error.log):
            # The step's log ends with these lines; those of another worker are not in it.
            raise ProcessFailedError(error.message) from None
        raise
    return options


def make_job_name(prefix: str, seed: str) -> str:
    """Return a job name, a DNS label of at most 51 characters that depends on the prefix and the seed only.

    Args:
        prefix: What the job does, such as a function's name.
        seed: Identity of the step, such as its output directory: a retried step finds the job of its first attempt.
    """
    digest = hashlib.sha256(seed.encode()).hexdigest()[:10]
    head = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")
    head = head if head[:1].isalpha() else f"job-{head}"
    return f"{head[: _MAXIMUM_NAME - len(digest) - 1].strip('-')}-{digest}"


def _delete_previous(client: MSJobClient, name: str, replace_running: bool) -> None:
    try:
        client.get_job(name)
    except NotFoundError:
        return
    if replace_running or client.is_job_succeeded(name) or client.is_job_failed(name):
        client.delete_job(name)
