"""Workers that reconcile one job at a time, under `kfp_mindspore.operator.decisions.reconcile`'s contract."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, NotFoundError, ValidationError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.errors import ConflictError, ForbiddenError, NotInstalledError, WebhookDeniedError
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, Resource
from kfp_mindspore.msjob.api.manifest import now
from kfp_mindspore.msjob.api.names import FAILED, MSJOBS, RESTARTING, SUCCEEDED
from kfp_mindspore.msjob.api.waiting import FORBIDDEN, QUOTA_EXCEEDED, QUOTA_TOO_SMALL, REJECTED
from kfp_mindspore.operator.decisions.actions import (
    Action,
    Assign,
    Create,
    Delete,
    EmitEvent,
    PatchStatus,
    Read,
    RequeueAt,
)
from kfp_mindspore.operator.decisions.observed import Refusal
from kfp_mindspore.operator.decisions.reconcile import Outcome, reconcile
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.operator.process.metrics import OperatorMetrics
from kfp_mindspore.operator.process.progress import ProgressReader
from kfp_mindspore.operator.process.recorder import Recorder
from kfp_mindspore.operator.process.store import JobCache, JobKey
from kfp_mindspore.operator.process.workqueue import WorkQueue
from kfp_mindspore.settings import HANG_EXIT_CODE

# PodGroup, Service, pods, and one to spare; a job that needs more is queued again.
_ROUNDS = 4
# Deadlines are wall-clock; never fire early.
_TIMER_SLACK_SECONDS = 0.01
# An invalid template, a quota, an admission policy, Kueue without its definitions.
_REFUSALS = (ValidationError, ForbiddenError, NotInstalledError)
_REASONS = {"quota": QUOTA_EXCEEDED, "small-quota": QUOTA_TOO_SMALL, "webhook": REJECTED}


class Controller:
    """The workers' logic.

    Args:
        client: The client.
        store: The observed state.
        queue: Job keys to reconcile.
        recorder: Writes events.
        progress: Reads a job's progress when it ends.
        metrics: Counters.
        options: The operator's options.
    """

    def __init__(
        self,
        client: AsyncClient,
        store: JobCache,
        queue: WorkQueue,
        recorder: Recorder,
        progress: ProgressReader,
        metrics: OperatorMetrics,
        options: OperatorOptions,
    ) -> None:
        self._client = client
        self._store = store
        self._queue = queue
        self._recorder = recorder
        self._progress = progress
        self._metrics = metrics
        self._options = options
        self._logger = logging.getLogger(__name__)

    async def work(self) -> None:
        """Reconcile one queued job after the other until cancelled."""
        while True:
            key, waited = await self._queue.get()
            self._metrics.queue_seconds.observe(waited)
            start = time.monotonic()
            try:
                await self.process(key)
                self._queue.reset_failures(key)
            except KfpMindSporeError as error:
                self._retry(key, error.message)
            except Exception:
                # An unexpected error in one job must not stop the others.
                self._logger.exception("cannot reconcile", extra={"job": str(key)})
                self._retry(key, "")
            finally:
                self._metrics.reconcile_seconds.observe(time.monotonic() - start)
                self._queue.done(key)

    async def process(self, key: JobKey) -> None:
        """Reconcile a job until nothing more follows from the observed state.

        Raises:
            KfpMindSporeError: A write failed; those that succeeded are in the store.
        """
        await self._refresh_foreign(key)
        self._store.clear_references(key)
        for _ in range(_ROUNDS):
            observed, version = self._store.observe(key)
            outcome = reconcile(observed, now(), self._options)
            if _is_ending(observed.job, outcome.status):
                # The terminal status needs the last report: clients read it, and actions delete the pods.
                await self._progress.read(key)
                observed, version = self._store.observe(key)
                outcome = reconcile(observed, now(), self._options)
            if observed.job is None:
                self._queue.forget(key)
                return
            is_changed = outcome.status not in (None, observed.job.get("status"))
            if is_changed and not await self._write_status(key, observed.job, version, outcome):
                continue
            if not await self._apply(key, outcome.actions):
                return
        self._queue.add(key)

    def _retry(self, key: JobKey, message: str) -> None:
        self._metrics.reconcile_errors.inc()
        seconds = self._queue.retry(key)
        if message:
            self._logger.warning("%s; retrying in %.1f s", message, seconds, extra={"job": str(key)})

    async def _write_status(self, key: JobKey, job: Mapping[str, Any], version: int, outcome: Outcome) -> bool:
        """Write the status under the observed resourceVersion, and emit events; False when the job has changed."""
        uid = str(job["metadata"].get("uid", ""))
        assert outcome.status is not None
        metadata = {**job["metadata"], "resourceVersion": str(version)}
        try:
            stored = await self._client.update(
                MSJOBS, {**job, "metadata": metadata, "status": outcome.status}, subresource="status"
            )
        except (NotFoundError, ConflictError):
            await self._refresh_job(key, uid)
            return False
        self._store.put_job(stored)
        for action in outcome.actions:
            if isinstance(action, EmitEvent):
                self._recorder.record(key, uid, action)
        self._report(key, job.get("status") or {}, outcome.status)
        return True

    async def _refresh_job(self, key: JobKey, uid: str) -> None:
        try:
            document = await self._client.get(MSJOBS, key.name, key.namespace)
        except NotFoundError:
            self._store.drop_job(key, uid)
            return
        if document["metadata"].get("uid") != uid:
            self._store.drop_job(key, uid)
        self._store.put_job(document)

    async def _apply(self, key: JobKey, actions: Sequence[Action]) -> bool:
        """Apply all actions but events; return whether the observed state has changed, so that more may follow."""
        for action in actions:
            if isinstance(action, RequeueAt):
                seconds = (action.time - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
                self._queue.add_later(key, seconds + _TIMER_SLACK_SECONDS)
        creates = [action for action in actions if isinstance(action, Create)]
        deletes = [action for action in actions if isinstance(action, Delete)]
        results = await asyncio.gather(
            *(self._create(key, action) for action in creates),
            *(self._delete(key, action) for action in deletes),
            *(self._assign(key, action) for action in actions if isinstance(action, Assign)),
            *(self._read(key, action) for action in actions if isinstance(action, Read)),
            *(self._patch_status(key, action) for action in actions if isinstance(action, PatchStatus)),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, KfpMindSporeError):
                raise result
        errors = [result for result in results if isinstance(result, KfpMindSporeError)]
        refusals = [
            (error, _view_refusal(error, action.resource))
            for action, error in zip(creates, results, strict=False)
            if isinstance(error, _REFUSALS)
        ]
        refusals.sort(key=lambda item: not item[1].is_permanent)
        if creates and self._store.set_refusal(key, refusals[0][1] if refusals else None):
            # The status must show the refusal before the retry delay is over.
            self._queue.add(key)
        if errors:
            raise refusals[0][0] if refusals else errors[0]
        return any(result is True for result in results)

    async def _create(self, key: JobKey, action: Create) -> bool:
        """Create an object; return whether further actions depend on it, as pods on the Service's address."""
        try:
            # Templates may have fields that this API server does not know: it drops them, as for any controller.
            created = await self._client.create(action.resource, action.body, key.namespace, strict=False)
        except AlreadyExistsError:
            return await self._fetch(key, action.resource, action.name)
        except _REFUSALS as error:
            if not action.is_optional:
                raise
            self._logger.warning("%s", error.message, extra={"job": str(key)})
            return False
        self._store.put(action.resource, created)
        return action.resource not in (PODS, ENDPOINT_SLICES)

    async def _delete(self, key: JobKey, action: Delete) -> bool:
        """Delete an object; return whether it is gone, so that no watch event is needed to continue."""
        try:
            deleted = await self._client.delete(
                action.resource, action.name, key.namespace, uid=action.uid, grace_seconds=action.grace_seconds
            )
        except (NotFoundError, ConflictError):
            # Gone, or another object with that name.
            deleted = {}
        if action.resource == MSJOBS:
            self._store.drop_job(key, action.uid)
            return False
        metadata = deleted.get("metadata") or {}
        if metadata.get("deletionTimestamp"):
            version = int(metadata["resourceVersion"])
            self._store.mark_deleting(action.resource, key, action.name, action.uid, version)
            return False
        self._store.drop(action.resource, key, action.name, action.uid)
        return True

    async def _assign(self, key: JobKey, action: Assign) -> bool:
        """Turn a spare into a member; a spare that cannot be patched is deleted."""
        patch = {"metadata": {"uid": action.uid, **action.metadata}}
        try:
            patched = await self._client.patch(PODS, action.name, key.namespace, patch)
        except (NotFoundError, ConflictError):
            # Gone, or another pod with that name.
            self._store.drop(PODS, key, action.name, action.uid)
        except _REFUSALS as error:
            self._logger.warning("%s", error.message, extra={"job": str(key)})
            await self._delete(key, Delete(PODS, action.name, action.uid))
        else:
            self._store.put(PODS, patched)
        return True

    async def _read(self, key: JobKey, action: Read) -> bool:
        """Store a cluster-wide object, or why it cannot be read."""
        try:
            self._store.put_reference(
                key, action.resource, action.name, await self._client.get(action.resource, action.name)
            )
        except (NotFoundError, ForbiddenError, NotInstalledError) as error:
            self._store.put_reference(key, action.resource, action.name, error.message)
        return True

    async def _patch_status(self, key: JobKey, action: PatchStatus) -> bool:
        """Patch an object's status; an object that has changed meanwhile is read instead."""
        preconditions = {"uid": action.uid, "resourceVersion": action.version}
        try:
            patched = await self._client.patch(
                action.resource,
                action.name,
                key.namespace,
                {"metadata": preconditions, "status": action.status},
                subresource="status",
            )
        except NotFoundError:
            self._store.drop(action.resource, key, action.name, action.uid)
        except ConflictError:
            await self._fetch(key, action.resource, action.name)
        else:
            self._store.put(action.resource, patched)
        return True

    async def _fetch(self, key: JobKey, resource: Resource, name: str) -> bool:
        """Store the object that holds a name which a job needs."""
        try:
            document = await self._client.get(resource, name, key.namespace)
        except NotFoundError:
            return True
        if self._store.resolve_job(resource, document) == key:
            self._store.put(resource, document)
        else:
            self._store.put_foreign(key, resource, document)
        return True

    async def _refresh_foreign(self, key: JobKey) -> None:
        """Read foreign objects again: no watch reports their deletion."""
        for resource, name in self._store.list_foreign(key):
            self._store.drop_foreign(key, resource, name)
            await self._fetch(key, resource, name)

    def _report(self, key: JobKey, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Count and log a job state change."""
        old, new = before.get("state"), after.get("state")
        if old == new and before.get("attempt") == after.get("attempt"):
            return
        condition: Mapping[str, Any] = next(
            (item for item in after.get("conditions") or [] if item["type"] == new and item["status"] == "True"), {}
        )
        reason = condition.get("reason") or ""
        if new == RESTARTING:
            self._metrics.restarts.labels(reason).inc()
        elif new in (SUCCEEDED, FAILED) and old not in (SUCCEEDED, FAILED):
            self._metrics.finished.labels(new).inc()
        failure = after.get("failure") or {}
        # The failure of an earlier attempt stays in the status when the gang is scaled.
        is_new = failure.get("attempt") == (before.get("attempt") or 0)
        if new in (RESTARTING, FAILED) and is_new and failure.get("exitCode") == HANG_EXIT_CODE:
            self._metrics.hangs.inc()
        level = logging.WARNING if new in (RESTARTING, FAILED) else logging.INFO
        extra = {"job": str(key), "state": new, "reason": reason, "attempt": after.get("attempt")}
        self._logger.log(level, "%s: %s", new, condition.get("message") or "", extra=extra)


def _is_ending(job: Mapping[str, Any] | None, status: Mapping[str, Any] | None) -> bool:
    """Return whether a new status ends a job that was started."""
    before = (job or {}).get("status") or {}
    ended = (SUCCEEDED, FAILED)
    return status is not None and status.get("state") in ended and before.get("state") not in (None, *ended)


def _view_refusal(error: ValidationError | ForbiddenError | NotInstalledError, resource: Resource) -> Refusal:
    """Return a refusal's view: quotas, webhooks and missing accounts may change, a pod's template does not."""
    if isinstance(error, ForbiddenError):
        is_permanent = error.cause == "pod-security"
        return Refusal(error.message, _REASONS.get(error.cause, FORBIDDEN), resource == PODS and is_permanent)
    is_permanent = not isinstance(error, (WebhookDeniedError, NotInstalledError))
    return Refusal(error.message, REJECTED, resource == PODS and is_permanent)
