"""Looks at one job after the other and does what `reconcile` decides, by the contract written there."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import AlreadyExistsError, KfpMindSporeError, NotFoundError, ValidationError
from kfp_mindspore.kube import ENDPOINT_SLICES, PODS, SERVICES, AsyncClient, ConflictError, ForbiddenError, Resource
from kfp_mindspore.msjob.manifest import now
from kfp_mindspore.msjob.names import FAILED, RESTARTING, SUCCEEDED
from kfp_mindspore.operator.actions import (
    Action,
    CreateEndpointSlice,
    CreatePod,
    CreatePodGroup,
    CreateService,
    DeleteEndpointSlice,
    DeleteJob,
    DeletePod,
    DeletePodGroup,
    DeleteService,
    EmitEvent,
    RequeueAt,
)
from kfp_mindspore.operator.metrics import Metrics
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.reconcile import Outcome, reconcile
from kfp_mindspore.operator.recorder import Recorder
from kfp_mindspore.operator.resources import JOBS, get_pod_groups
from kfp_mindspore.operator.store import VIEWS, Key, Kind, Store
from kfp_mindspore.operator.workqueue import WorkQueue

# PodGroup, Service, pods, and one to spare; what needs more goes to the end of the queue.
_ROUNDS = 4
# A timer must not come before its time, by the clock of the wall.
_TIMER_SLACK_SECONDS = 0.01
# Errors that a retry does not resolve: an invalid template, a quota, an admission policy.
_REFUSALS = (ValidationError, ForbiddenError)


class Controller:
    """What the workers do.

    Args:
        client: The client.
        store: What was seen.
        queue: Which jobs to look at.
        recorder: Takes events.
        metrics: Counts.
        options: The operator's choices.
    """

    def __init__(
        self,
        client: AsyncClient,
        store: Store,
        queue: WorkQueue,
        recorder: Recorder,
        metrics: Metrics,
        options: Options,
    ):
        self._client = client
        self._store = store
        self._queue = queue
        self._recorder = recorder
        self._metrics = metrics
        self._options = options
        self._logger = logging.getLogger(__name__)
        self._resources: dict[Kind, Resource] = {
            "pods": PODS,
            "services": SERVICES,
            "endpointslices": ENDPOINT_SLICES,
        }
        if groups := get_pod_groups(options.gang_scheduler):
            self._resources["podgroups"] = groups

    async def work(self) -> None:
        """Look at one job after the other until cancelled."""
        while True:
            key, waited = await self._queue.get()
            self._metrics.queue_seconds.observe(waited)
            start = time.monotonic()
            try:
                await self.look(key)
                self._queue.reset_failures(key)
            except KfpMindSporeError as error:
                self._fail(key, error.message)
            except Exception:
                # One job that cannot be understood must not end the others.
                self._logger.exception("cannot reconcile", extra={"job": str(key)})
                self._fail(key, "")
            finally:
                self._metrics.reconcile_seconds.observe(time.monotonic() - start)
                self._queue.done(key)

    async def look(self, key: Key) -> None:
        """Look at a job until nothing more follows from what is known.

        Raises:
            KfpMindSporeError: A write failed; those that succeeded are in the store.
        """
        await self._refresh_foreign(key)
        for _ in range(_ROUNDS):
            observed, version = self._store.observe(key)
            if observed.job is None:
                self._queue.forget(key)
                return
            outcome = reconcile(observed, now(), self._options)
            is_changed = outcome.status not in (None, observed.job.get("status"))
            if is_changed and not await self._write_status(key, observed.job, version, outcome):
                continue
            if not await self._apply(key, outcome.actions):
                return
        self._queue.add(key)

    def _fail(self, key: Key, message: str) -> None:
        self._metrics.reconcile_errors.inc()
        seconds = self._queue.retry(key)
        if message:
            self._logger.warning("%s; again in %.1f s", message, seconds, extra={"job": str(key)})

    async def _write_status(self, key: Key, job: Mapping[str, Any], version: int, outcome: Outcome) -> bool:
        """Write the status under the resourceVersion that was seen, and tell of it; False when the job has changed."""
        uid = str(job["metadata"].get("uid", ""))
        assert outcome.status is not None
        document = {
            **job,
            "metadata": {**job["metadata"], "resourceVersion": str(version)},
            "status": outcome.status,
        }
        try:
            # The API server changes nothing but the status by it.
            stored = await self._client.update(JOBS, document, subresource="status")
        except (NotFoundError, ConflictError):
            await self._refresh_job(key, uid)
            return False
        self._store.put_job(stored)
        for action in outcome.actions:
            if isinstance(action, EmitEvent):
                self._recorder.record(key, uid, action)
        self._report(key, job.get("status") or {}, outcome.status)
        return True

    async def _refresh_job(self, key: Key, uid: str) -> None:
        try:
            document = await self._client.get(JOBS, key.name, key.namespace)
        except NotFoundError:
            self._store.drop_job(key, uid)
            return
        if document["metadata"].get("uid") != uid:
            self._store.drop_job(key, uid)
        self._store.put_job(document)

    async def _apply(self, key: Key, actions: Sequence[Action]) -> bool:
        """Do all but events; return whether the observation has changed by that, so that more may follow at once."""
        for action in actions:
            if isinstance(action, RequeueAt):
                seconds = (action.time - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
                self._queue.add_later(key, seconds + _TIMER_SLACK_SECONDS)
        work = [action for action in actions if not isinstance(action, (EmitEvent, RequeueAt))]
        if not work:
            return False
        answers = await asyncio.gather(*(self._do(key, action) for action in work), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, KfpMindSporeError):
                raise answer
        errors = [answer for answer in answers if isinstance(answer, KfpMindSporeError)]
        refusal = next((error for error in errors if isinstance(error, _REFUSALS)), None)
        creates = any(isinstance(action, CreatePod) for action in work)
        if creates and self._store.set_refusal(key, refusal.message if refusal else ""):
            # The status must say so, and before the next pause is over.
            self._queue.add(key)
        if errors:
            raise refusal or errors[0]
        return any(answer is True for answer in answers)

    async def _do(self, key: Key, action: Action) -> bool:
        """Do one thing; return whether it tells something that the next decision may be made from."""
        if isinstance(action, CreatePodGroup):
            return await self._create(key, "podgroups", action.body)
        if isinstance(action, CreateService):
            return await self._create(key, "services", action.body)
        if isinstance(action, CreateEndpointSlice):
            return await self._create(key, "endpointslices", action.body)
        if isinstance(action, CreatePod):
            return await self._create(key, "pods", action.body)
        if isinstance(action, DeletePod):
            return await self._delete(key, "pods", action.name, action.uid, action.grace_seconds)
        if isinstance(action, DeleteService):
            return await self._delete(key, "services", action.name, action.uid)
        if isinstance(action, DeleteEndpointSlice):
            return await self._delete(key, "endpointslices", action.name, action.uid)
        if isinstance(action, DeletePodGroup):
            return await self._delete(key, "podgroups", action.name, action.uid)
        if isinstance(action, DeleteJob):
            await self._delete_object(JOBS, key.namespace, action.name, action.uid)
            self._store.drop_job(key, action.uid)
        return False

    async def _create(self, key: Key, kind: Kind, body: dict[str, Any]) -> bool:
        try:
            # Templates may have fields that this API server does not know: it drops them, as for any controller.
            created = await self._client.create(self._resources[kind], body, key.namespace, strict=False)
        except AlreadyExistsError:
            return await self._find_holder(key, kind, str(body["metadata"]["name"]))
        self._store.put(kind, created)
        # Pods wait for the Service's address and for the PodGroup.
        return kind in ("services", "podgroups")

    async def _find_holder(self, key: Key, kind: Kind, name: str) -> bool:
        """Add the object that has a name already to what was seen."""
        try:
            document = await self._client.get(self._resources[kind], name, key.namespace)
        except NotFoundError:
            return True
        if self._store.resolve_job(kind, document) == key:
            self._store.put(kind, document)
        else:
            self._store.put_foreign(key, kind, VIEWS[kind](document))
        return True

    async def _refresh_foreign(self, key: Key) -> None:
        """Ask what has become of objects that no watch tells of."""
        for kind, name in self._store.list_foreign(key):
            self._store.drop_foreign(key, kind, name)
            await self._find_holder(key, kind, name)

    async def _delete(self, key: Key, kind: Kind, name: str, uid: str, grace_seconds: int | None = None) -> bool:
        """Delete an object; return whether it is gone, of which the watch then tells nothing new."""
        answer = await self._delete_object(self._resources[kind], key.namespace, name, uid, grace_seconds)
        if answer is None:
            self._store.drop(kind, key, name, uid)
        else:
            self._store.mark_deleting(kind, key, name, uid, answer)
        return answer is None

    async def _delete_object(
        self, resource: Resource, namespace: str, name: str, uid: str, grace_seconds: int | None = None
    ) -> int | None:
        """Delete an object; return its resourceVersion while it is still ending, or None when it is gone."""
        try:
            answer = await self._client.delete(resource, name, namespace, uid=uid, grace_seconds=grace_seconds)
        except (NotFoundError, ConflictError):
            # Gone, or another object of that name.
            return None
        metadata = answer.get("metadata") or {}
        return int(metadata["resourceVersion"]) if metadata.get("deletionTimestamp") else None

    def _report(self, key: Key, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Count and log what a status says that the one before did not."""
        old, new = before.get("state"), after.get("state")
        if old == new and before.get("attempt") == after.get("attempt"):
            return
        condition: Mapping[str, Any] = next(
            (item for item in after.get("conditions") or [] if item["type"] == new and item["status"] == "True"), {}
        )
        if new == RESTARTING:
            self._metrics.restarts.labels(condition.get("reason") or "").inc()
        elif new in (SUCCEEDED, FAILED) and old not in (SUCCEEDED, FAILED):
            self._metrics.finished.labels(new).inc()
        level = logging.WARNING if new in (RESTARTING, FAILED) else logging.INFO
        self._logger.log(
            level,
            "%s: %s",
            new,
            condition.get("message") or "",
            extra={
                "job": str(key),
                "state": new,
                "reason": condition.get("reason") or "",
                "attempt": after.get("attempt"),
            },
        )
