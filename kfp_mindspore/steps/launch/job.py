"""The launcher for a step's MSJobs: submit or adopt, print the log, wait."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kfp_mindspore.canonical import digest_json
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.settings import KUBERNETES, get_backend_name, get_image
from kfp_mindspore.steps.handover.job_name import make_job_name
from kfp_mindspore.steps.handover.step_pod import RUN_LABEL, read_step_pod

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob, MSJobClient
    from kfp_mindspore.msjob.api.waiting import Waiting

# The step that submitted a job, and the digest over the spec that it submitted: a step retry adopts the job.
STEP_ANNOTATION = "training.kubeflow.org/step"
SPEC_ANNOTATION = "training.kubeflow.org/spec-digest"
# More than the lines in a failed job's error.
_KEPT_LINES = 100
_DIGEST_LENGTH = 12


class StepJobs:
    """A step's access to MSJobs.

    On a cluster a job has a lease that this process renews, and belongs to the step pod's Workflow. When the run is
    terminated, the jobs are deleted; when the step's pod is deleted, as when the node is drained, they are left to the
    step's retry and to leases of an hour, in which a person can retry the run.

    Args:
        root: The step's output root, which identifies it, see `make_job_name`.
        namespace: Job namespace.
    """

    def __init__(self, root: str, namespace: str) -> None:
        from kfp_mindspore.msjob import MSJobClient
        from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend

        self.client: MSJobClient = MSJobClient(namespace=namespace)
        self.has_lease = get_backend_name() == KUBERNETES
        backend = self.client.backend
        self._step = read_step_pod(backend.cluster) if isinstance(backend, KubernetesBackend) else None
        self._root = root
        self._namespace = namespace
        self._warnings: set[str] = set()

    def build(
        self,
        name: str,
        command: Sequence[str],
        options: JobOptions,
        *,
        env: Mapping[str, str] | None = None,
        pod: PodPatch | None = None,
        has_step_image: bool = False,
    ) -> MSJob:
        """Return a job that belongs to this step and run; the arguments are `launch_job`'s."""
        from kfp_mindspore.msjob import build_msjob

        step = self._step
        step_image = step.image if step is not None else ""
        image = (step_image if has_step_image else "") or get_image(options.image) or step_image
        if step is not None and step.namespace == self._namespace:
            pod = PodPatch(env=step.secrets).merge(pod or PodPatch())
        job = build_msjob(
            name, command=command, namespace=self._namespace, options=options, pod=pod, env=env, image=image
        )
        annotations = {STEP_ANNOTATION: _digest(self._root), SPEC_ANNOTATION: _digest(job.to_dict()["spec"])}
        job.metadata["annotations"] = {**job.metadata.get("annotations", {}), **annotations}
        if step is not None and step.run_id:
            job.metadata["labels"] = {**job.metadata.get("labels", {}), RUN_LABEL: step.run_id}
        # An owner in another namespace counts as deleted: the garbage collector would delete the job.
        if step is not None and step.workflow is not None and step.namespace == job.namespace:
            job.metadata["ownerReferences"] = [dict(step.workflow)]
        return job

    def submit(self, job: MSJob, *, is_named: bool = False, keeps_finished: bool = False) -> MSJob:
        """Return the job that an earlier attempt at this step has submitted, else replace it or submit the job.

        Args:
            job: The job.
            is_named: Whether the user has named it: another step's job is then left alone.
            keeps_finished: Whether an earlier attempt's job is also adopted when it has failed.
        """
        from kfp_mindspore.msjob.api.names import FAILED, LEASE_ANNOTATION, SUCCEEDED
        from kfp_mindspore.msjob.lease import format_lease

        try:
            present: MSJob | None = self.client.get_job(job.name)
        except NotFoundError:
            present = None
        if present is not None:
            is_own = not is_named or _get_annotation(present, STEP_ANNOTATION) == _get_annotation(job, STEP_ANNOTATION)
            is_same = is_own and _get_annotation(present, SPEC_ANNOTATION) == _get_annotation(job, SPEC_ANNOTATION)
            has_succeeded = present.status is not None and present.status.has(SUCCEEDED)
            is_finished = has_succeeded or (present.status is not None and present.status.has(FAILED))
            is_deleted = bool(present.metadata.get("deletionTimestamp"))
            # A local step is not retried: a finished job belongs to an earlier run in the same directory.
            is_kept = keeps_finished or not is_finished or (has_succeeded and self.has_lease)
            if is_same and not is_deleted and is_kept:
                print(f"Adopting job {job.name} of an earlier attempt of this step", flush=True)
                return present
            if is_own or is_finished or is_deleted:
                with contextlib.suppress(NotFoundError):
                    self.client.delete_job(job.name)
        if self.has_lease:
            job.metadata["annotations"][LEASE_ANNOTATION] = format_lease()
        created = self.client.backend.create(job)
        blocked = self.client.backend.explain_queue(job)
        # A sweep's trials have the same queue.
        if blocked and blocked not in self._warnings:
            print(f"Warning: {blocked}", flush=True)
            self._warnings.add(blocked)
        return created

    def is_drained(self) -> bool:
        """Return whether this step's pod is being deleted, so that a retry adopts the jobs."""
        return self._step is not None and self._step.is_deleted()

    def leave(self, jobs: Iterable[MSJob] = ()) -> None:
        """Leave the jobs to the step's retry: delete the terminating pod at once, and extend their leases."""
        from kfp_mindspore.msjob.api.names import LEASE_ANNOTATION
        from kfp_mindspore.msjob.lease import DRAINED_LEASE_SECONDS, format_lease

        if self._step is not None:
            self._step.delete_now()
        patch = {"metadata": {"annotations": {LEASE_ANNOTATION: format_lease(DRAINED_LEASE_SECONDS)}}}
        for job in jobs:
            with contextlib.suppress(KfpMindSporeError):
                self.client.backend.update(job.name, job.namespace, patch)

    def cancel(self, jobs: Iterable[MSJob], error: BaseException) -> None:
        """Request deletion for unfinished jobs when this process ends before them, unless a step retry adopts them.

        Args:
            jobs: The jobs.
            error: What ends this process.
        """
        # Kubeflow Pipelines closes stdout when it terminates a step.
        is_terminated = isinstance(error, (SystemExit, KeyboardInterrupt, BrokenPipeError))
        if self.has_lease and not is_terminated:
            return
        if self.has_lease and self.is_drained():
            self.leave(jobs)
            return
        for job in jobs:
            with contextlib.suppress(KfpMindSporeError):
                self.client.backend.cancel(job)


class JobWatch:
    """Keeps a submitted job's lease and limits the start, within a block that waits for the job.

    Args:
        jobs: The step's jobs.
        job: The job.
        start_seconds: The options' `start_timeout_seconds`.
        on_line: Called with each sentence about the job.

    Attributes:
        limit: The limit for the start, which has the reason if the job was deleted.
    """

    def __init__(
        self, jobs: StepJobs, job: MSJob, start_seconds: float | None, on_line: Callable[[str], object]
    ) -> None:
        from kfp_mindspore.msjob.start_limit import StartLimit

        self._jobs, self._job, self._on_line = jobs, job, on_line
        self._stack = contextlib.ExitStack()
        self.limit = StartLimit(jobs.client, job.name, job.namespace, start_seconds)

    def __enter__(self) -> JobWatch:
        from kfp_mindspore.msjob.api.waiting import NO_OPERATOR, Waiting
        from kfp_mindspore.msjob.lease import LeaseRenewal
        from kfp_mindspore.msjob.missing_operator import report_missing_operator

        client, name, namespace = self._jobs.client, self._job.name, self._job.namespace
        self._stack.enter_context(self.limit)
        if self._jobs.has_lease:
            self._stack.enter_context(LeaseRenewal(client.backend, name, namespace, on_error=self._on_line))
            self._stack.enter_context(
                report_missing_operator(
                    client, name, namespace, lambda text: self.report_waiting(Waiting(NO_OPERATOR, text))
                )
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def report_waiting(self, waiting: Waiting) -> None:
        """Report why the job's pods do not run, and start the limit for this reason."""
        self._on_line(f"Waiting: {waiting.message}")
        self.limit.start(waiting)


def launch_job(
    root: str,
    command: Sequence[str],
    options: JobOptions,
    *,
    name: str = "",
    namespace: str,
    env: Mapping[str, str] | None = None,
    has_step_image: bool = False,
    pod: PodPatch | None = None,
) -> str:
    """Submit a job, print the log and wait until it has succeeded; a retry of the step adopts the job.

    Args:
        root: The step's output root, which identifies it, see `make_job_name`.
        command: Worker command with all arguments.
        options: The job's options. Without an image the workers have the step's.
        name: Job name; empty for one derived from the output root. A finished job with this name is replaced.
        namespace: Job namespace.
        env: Variables of the workers that take precedence over the options'.
        has_step_image: Whether the workers need the step's image, such as one set by `set_container_image`.
        pod: Additions to the job pods; the options take precedence.

    Returns:
        The job's name.

    Raises:
        ValidationError: The job is invalid; the message names the field.
        AlreadyExistsError: A job with this name, which another step or user has submitted, is running.
        ProcessFailedError: The job failed; the last lines have been printed or are in the message.
    """
    jobs = StepJobs(root, namespace)
    job = jobs.build(name or make_job_name(root), command, options, env=env, pod=pod, has_step_image=has_step_image)
    try:
        _run(jobs, job, is_named=bool(name), start_seconds=options.start_timeout_seconds)
    finally:
        if options.delete_after_done:
            _delete_finished(jobs.client, job)
    return job.name


def _run(jobs: StepJobs, job: MSJob, *, is_named: bool, start_seconds: float | None) -> None:
    from kfp_mindspore.local.interrupts import Interrupts
    from kfp_mindspore.msjob.failure import JobFailedError
    from kfp_mindspore.msjob.follow import follow_job

    printed: deque[str] = deque(maxlen=_KEPT_LINES)

    def print_line(line: str) -> None:
        printed.append(line)
        print(line, flush=True)

    watch = JobWatch(jobs, job, start_seconds, print_line)
    with Interrupts() as interrupts:
        with interrupts.held():
            submitted = jobs.submit(job, is_named=is_named)
        try:
            interrupts.raise_pending()
            with watch:
                follow_job(jobs.client, job.name, job.namespace, on_log=print_line, on_waiting=watch.report_waiting)
        except JobFailedError as error:
            if watch.limit.error:
                raise ProcessFailedError(watch.limit.error) from None
            if set(printed).issuperset(error.log):
                # The step's log ends with these lines; another worker's lines are not in it.
                raise ProcessFailedError(error.message) from None
            raise
        except BaseException as error:
            jobs.cancel([submitted], error)
            raise


def _delete_finished(client: MSJobClient, job: MSJob) -> None:
    with contextlib.suppress(NotFoundError):
        present = client.get_job(job.name)
        if present.status is not None and present.status.is_finished:
            client.backend.cancel(present)


def _get_annotation(job: MSJob, name: str) -> str:
    return str((job.metadata.get("annotations") or {}).get(name) or "")


def _digest(value: Any) -> str:
    return digest_json(value)[:_DIGEST_LENGTH]
