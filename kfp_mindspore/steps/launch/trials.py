"""A sweep's trials as a step's MSJobs, and the study in the artifact store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.files import write_bytes
from kfp_mindspore.msjob.api.names import FAILED, SUCCEEDED
from kfp_mindspore.msjob.api.status import read_waiting
from kfp_mindspore.msjob.api.waiting import Waiting
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.retries import wait_with_jitter
from kfp_mindspore.steps.launch.job import JobWatch, StepJobs
from kfp_mindspore.steps.launch.train import CHECKPOINT_FOLDER, ArtifactTrainingFiles, LocalTrainingFiles
from kfp_mindspore.stores.artifact_store import ArtifactStore, StoreError, join_uri
from kfp_mindspore.sweeps.jobs import CHECKPOINTS_FOLDER, TrialJob, TrialJobState, share_cores
from kfp_mindspore.sweeps.options import CHECKPOINT_BYTES
from kfp_mindspore.sweeps.study import JOURNAL_FILE, SWEEP_FILE

_STUDY_FILES = (SWEEP_FILE, JOURNAL_FILE)
# Longer than a store's restart.
_RETRIES_SECONDS = 120.0
_LAST_LINES = 20

TrainingFiles = LocalTrainingFiles | ArtifactTrainingFiles


class StoredStudy:
    """A study's files below a URI, which outlive the launcher's pod.

    Args:
        store: The store.
        uri: URI of the folder.
        directory: The engine's directory.
    """

    def __init__(self, store: ArtifactStore, uri: str, directory: Path) -> None:
        self._store, self._uri, self._directory = store, uri, directory

    def load(self) -> None:
        """Download the study that an earlier launcher has stored.

        Raises:
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        for name in _STUDY_FILES:
            try:
                content = self._store.read_bytes(join_uri(self._uri, name))
            except StoreError as error:
                raise KfpMindSporeError(f"the sweep is not started: {error}") from error
            if content is not None:
                write_bytes(self._directory / name, content)

    def save(self) -> None:
        """Upload the study; a store that restarts is waited for.

        Raises:
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        from tenacity import Retrying, retry_if_exception, stop_after_delay

        retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, StoreError) and error.retryable),
            stop=stop_after_delay(_RETRIES_SECONDS),
            wait=wait_with_jitter(1.0, 15.0),
            before_sleep=lambda state: print(state.outcome and state.outcome.exception(), flush=True),
            reraise=True,
        )
        try:
            for name in _STUDY_FILES:
                retrying(self._store.upload, self._directory / name, join_uri(self._uri, name))
        except StoreError as error:
            raise KfpMindSporeError(f"the sweep's study cannot be stored: {error}") from error


@dataclass
class _Running:
    files: TrainingFiles
    job: MSJob
    watch: JobWatch
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    waiting: Waiting | None = None


class StepTrials:
    """A sweep's `TrialJobs` in a step.

    Args:
        jobs: The step's jobs.
        options: The options of each job.
        build_command: Returns a trial's command.
        open_files: Returns the files of a job with this output directory or URI.
        pod: Additions to the job pods; the options take precedence.
        study: Where the study is stored; None for the engine's directory alone.
    """

    def __init__(
        self,
        jobs: StepJobs,
        options: JobOptions,
        build_command: Callable[[TrialJob], Sequence[str]],
        open_files: Callable[[str], TrainingFiles],
        *,
        pod: PodPatch,
        study: StoredStudy | None,
    ) -> None:
        self._jobs, self._options, self._pod = jobs, options, pod
        self._build_command, self._open_files = build_command, open_files
        self._study = study
        self._running: dict[str, _Running] = {}
        # The pods upload metrics.jsonl every 2 s.
        self.poll_seconds = 1.0 if jobs.has_lease else 0.5

    def list_names(self) -> Collection[str]:
        """Return the jobs' names."""
        return {job.name for job in self._jobs.client.list_jobs()}

    def start(self, job: TrialJob) -> None:
        """Submit a job, or adopt an earlier launcher's."""
        files = self._open_files(job.output)
        # A job that was interrupted goes on from its own.
        if job.source and not files.get_size(CHECKPOINTS_FOLDER):
            self._open_files(job.source).copy(f"{job.output}/{CHECKPOINTS_FOLDER}", CHECKPOINTS_FOLDER)
        options = self._options.merge({"env": files.directories})
        if not self._jobs.has_lease and job.slots > 1:
            shared = share_cores(job, options.workers)
            options = options.merge({"env": {name: shared[name] for name in shared if name not in options.env}})
        if job.timeout is not None:
            deadline = min(job.timeout, options.active_deadline_seconds or job.timeout)
            options = options.merge({"active_deadline_seconds": deadline})
        built = self._jobs.build(
            job.name,
            [*files.wrapper, *self._build_command(job)],
            options,
            pod=self._pod.merge(files.patch),
        )
        submitted = self._jobs.submit(built, keeps_finished=True)
        watch = JobWatch(self._jobs, submitted, self._options.start_timeout_seconds, _print_line)
        self._running[job.name] = running = _Running(files, submitted, watch)
        running.stack.enter_context(watch)

    def read(self, job: TrialJob) -> TrialJobState:
        """Return a job's state, with all epochs that the pods have uploaded; print why pods do not run.

        Raises:
            NotFoundError: It does not exist.
            KfpMindSporeError: The store denies the request.
        """
        running = self._running[job.name]
        try:
            found = self._jobs.client.get_job(job.name)
        except NotFoundError:
            if running.watch.limit.error:
                return TrialJobState("failed", reason=running.watch.limit.error)
            raise
        waiting = read_waiting(found.status)
        if waiting is not None and waiting != running.waiting:
            running.watch.report_waiting(waiting)
        running.waiting = waiting
        has_succeeded = found.status is not None and found.status.has(SUCCEEDED)
        try:
            # After the job's state: an ended job's last epoch is uploaded.
            records = running.files.read_epochs()
            size = running.files.get_size(CHECKPOINT_FOLDER) if has_succeeded else 0
        except StoreError as error:
            if not error.retryable:
                raise KfpMindSporeError(f"job {job.name}: {error}") from error
            print(f"job {job.name}: {error}", flush=True)
            return TrialJobState("running")
        if found.status is not None and found.status.has(FAILED):
            failure = self._jobs.client.explain_failure(found, lines=_LAST_LINES)
            print("\n".join([f"{failure.message}:", *failure.log]), flush=True)
            return TrialJobState("failed", records, ": ".join([failure.message, *failure.log[-1:]]))
        if not has_succeeded:
            return TrialJobState("running", records)
        sized = [{**record, CHECKPOINT_BYTES: size} if size else record for record in records[-1:]]
        return TrialJobState("succeeded", [*records[:-1], *sized])

    def end(self, name: str) -> None:
        """Delete a job."""
        if running := self._running.pop(name, None):
            running.stack.close()
        with contextlib.suppress(NotFoundError):
            self._jobs.client.delete_job(name)

    def abandon(self, names: Sequence[str], error: BaseException) -> None:
        """Delete the jobs of a sweep that has failed or a run that is terminated; leave others to a step retry."""
        running = [self._running[name] for name in names if name in self._running]
        if isinstance(error, (UserError, ProcessFailedError)):
            for name in names:
                self.end(name)
        else:
            self._jobs.cancel([entry.job for entry in running], error)
        for entry in running:
            entry.stack.close()

    def save(self) -> None:
        """Store the study."""
        if self._study is not None:
            self._study.save()


def _print_line(line: str) -> None:
    print(line, flush=True)
