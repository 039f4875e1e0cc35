"""The launcher for a step's MSJob: submit or adopt, print the log, wait."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.settings import KUBERNETES, get_backend_name, get_image
from kfp_mindspore.steps.handover.job_name import make_job_name
from kfp_mindspore.steps.handover.step_pod import RUN_LABEL, StepPod, read_step_pod

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob, MSJobClient

# The step that submitted a job, and the digest over the spec that it submitted: a step retry adopts the job.
STEP_ANNOTATION = "training.kubeflow.org/step"
SPEC_ANNOTATION = "training.kubeflow.org/spec-digest"
# More than the lines in a failed job's error.
_KEPT_LINES = 100


def launch_job(
    root: str,
    command: Sequence[str],
    options: JobOptions,
    *,
    name: str = "",
    namespace: str,
    has_step_image: bool = False,
    pod: PodPatch | None = None,
) -> str:
    """Submit a job, print its log and wait until it has succeeded; a retry of the step adopts the job.

    On a cluster the job has a lease that this process renews, and belongs to the step pod's Workflow. When the run is
    terminated, the job is deleted; when the step's pod is deleted, as when its node is drained, the job is left to the
    step's retry and to its lease.

    Args:
        root: The step's output root, which identifies it, see `make_job_name`.
        command: Worker command with all arguments.
        options: The job's options. Without an image the workers have the step's.
        name: Job name; empty for one derived from the output root. A finished job with this name is replaced.
        namespace: Job namespace.
        has_step_image: Whether the workers need the step's image, such as one set by `set_container_image`.
        pod: Additions to the job pods; the options take precedence.

    Returns:
        The job's name.

    Raises:
        ValidationError: The job is invalid; the message names the field.
        AlreadyExistsError: A job with this name, which another step or user has submitted, is running.
        ProcessFailedError: The job failed; its last lines have been printed or are in the message.
    """
    from kfp_mindspore.msjob import MSJobClient, build_msjob
    from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend

    client = MSJobClient(namespace=namespace)
    step = read_step_pod(client.backend.cluster) if isinstance(client.backend, KubernetesBackend) else None
    step_image = step.image if step is not None else ""
    image = (step_image if has_step_image else "") or get_image(options.image) or step_image
    job = build_msjob(
        name or make_job_name(root), command=command, namespace=namespace, options=options, pod=pod, image=image
    )
    _set_owner(job, root, step)
    try:
        _run(client, job, step, is_named=bool(name), start_seconds=options.start_timeout_seconds)
    finally:
        if options.delete_after_done:
            _delete_finished(client, job)
    return job.name


def _set_owner(job: MSJob, root: str, step: StepPod | None) -> None:
    """Record the step and run that a job belongs to."""
    spec = json.dumps(job.to_dict()["spec"], sort_keys=True)
    annotations = {STEP_ANNOTATION: _digest(root), SPEC_ANNOTATION: _digest(spec)}
    job.metadata["annotations"] = {**job.metadata.get("annotations", {}), **annotations}
    if step is not None and step.run_id:
        job.metadata["labels"] = {**job.metadata.get("labels", {}), RUN_LABEL: step.run_id}
    # An owner in another namespace counts as deleted: the garbage collector would delete the job.
    if step is not None and step.workflow is not None and step.namespace == job.namespace:
        job.metadata["ownerReferences"] = [dict(step.workflow)]


def _run(client: MSJobClient, job: MSJob, step: StepPod | None, *, is_named: bool, start_seconds: float | None) -> None:
    from kfp_mindspore.local.interrupts import Interrupts
    from kfp_mindspore.msjob.failure import JobFailedError
    from kfp_mindspore.msjob.follow import follow_job
    from kfp_mindspore.msjob.lease import LeaseRenewal
    from kfp_mindspore.msjob.missing_operator import report_missing_operator
    from kfp_mindspore.msjob.start_limit import StartLimit
    from kfp_mindspore.msjob.waiting import NO_OPERATOR, Waiting

    has_lease = get_backend_name() == KUBERNETES
    printed: deque[str] = deque(maxlen=_KEPT_LINES)
    start_limit = StartLimit(client, job.name, job.namespace, start_seconds)

    def print_line(line: str) -> None:
        printed.append(line)
        print(line, flush=True)

    def report_waiting(waiting: Waiting) -> None:
        print_line(f"Waiting: {waiting.message}")
        start_limit.start(waiting)

    def report_missing(text: str) -> None:
        report_waiting(Waiting(NO_OPERATOR, text))

    with Interrupts() as interrupts:
        with interrupts.held():
            submitted = _submit(client, job, is_named=is_named, has_lease=has_lease)
        try:
            interrupts.raise_pending()
            with contextlib.ExitStack() as stack:
                stack.enter_context(start_limit)
                if has_lease:
                    stack.enter_context(LeaseRenewal(client.backend, job.name, job.namespace, on_error=print_line))
                    stack.enter_context(report_missing_operator(client, job.name, job.namespace, report_missing))
                follow_job(
                    client,
                    job.name,
                    job.namespace,
                    on_log=print_line,
                    on_waiting=report_waiting,
                )
        except JobFailedError as error:
            if start_limit.error:
                raise ProcessFailedError(start_limit.error) from None
            if set(printed).issuperset(error.log):
                # The step's log ends with these lines; another worker's lines are not in it.
                raise ProcessFailedError(error.message) from None
            raise
        except BaseException as error:
            # After other errors on a cluster a retry adopts the job, or its lease ends. Kubeflow Pipelines closes
            # stdout when it terminates a step.
            is_terminated = isinstance(error, (SystemExit, KeyboardInterrupt, BrokenPipeError))
            if not has_lease or (is_terminated and not (step is not None and step.is_deleted())):
                with contextlib.suppress(KfpMindSporeError):
                    client.backend.cancel(submitted)
            raise


def _submit(client: MSJobClient, job: MSJob, *, is_named: bool, has_lease: bool) -> MSJob:
    """Return the job that an earlier attempt at this step has submitted, else replace it or submit the job."""
    from kfp_mindspore.msjob.lease import format_lease
    from kfp_mindspore.msjob.names import FAILED, LEASE_ANNOTATION, SUCCEEDED

    try:
        present: MSJob | None = client.get_job(job.name)
    except NotFoundError:
        present = None
    if present is not None:
        is_own = not is_named or _get_annotation(present, STEP_ANNOTATION) == _get_annotation(job, STEP_ANNOTATION)
        is_same = is_own and _get_annotation(present, SPEC_ANNOTATION) == _get_annotation(job, SPEC_ANNOTATION)
        has_succeeded = present.status is not None and present.status.has(SUCCEEDED)
        is_finished = has_succeeded or (present.status is not None and present.status.has(FAILED))
        is_deleted = bool(present.metadata.get("deletionTimestamp"))
        # A local step is not retried: a finished job belongs to an earlier run in the same directory.
        if is_same and not is_deleted and (not is_finished or (has_succeeded and has_lease)):
            print(f"Adopting job {job.name} of an earlier attempt of this step", flush=True)
            return present
        if is_own or is_finished or is_deleted:
            with contextlib.suppress(NotFoundError):
                client.delete_job(job.name)
    if has_lease:
        job.metadata["annotations"][LEASE_ANNOTATION] = format_lease()
    return client.backend.create(job)


def _delete_finished(client: MSJobClient, job: MSJob) -> None:
    with contextlib.suppress(NotFoundError):
        present = client.get_job(job.name)
        if present.status is not None and present.status.is_finished:
            client.backend.cancel(present)


def _get_annotation(job: MSJob, name: str) -> str:
    return str((job.metadata.get("annotations") or {}).get(name) or "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
