"""Keeps the store in sync with the API server: one list-and-watch for each resource and namespace."""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from kfp_mindspore.kube.backoff import Backoff
from kfp_mindspore.kube.client import AsyncClient, Document
from kfp_mindspore.kube.errors import ForbiddenError, NotInstalledError
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.kube.watch import watch_events
from kfp_mindspore.msjob.api.kueue import WORKLOADS
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.operator.process.store import JobCache, JobKey

_LONGEST_DELAY_SECONDS = 10.0

Notify = Callable[[JobKey], None]


@dataclass
class Watcher:
    """A watch on one resource in one namespace, or in all.

    Attributes:
        client: The client.
        store: The store to update.
        resource: The resource.
        namespace: Empty for all.
        selector: A label selector; empty for all objects.
        notify: Called with the job key whenever a job's state has changed.
        synced: Set when the first list is in the store.
    """

    client: AsyncClient
    store: JobCache
    resource: Resource
    namespace: str
    selector: str
    notify: Notify
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    _listed: set[str] | None = None

    async def run(self) -> None:
        """List and watch until cancelled, through API server restarts.

        Raises:
            KfpMindSporeError: The first list failed: the operator may not read this resource, or it does not exist. It
                waits for Kueue's.
        """
        backoff = Backoff(first=0.5, longest=_LONGEST_DELAY_SECONDS)
        while True:
            try:
                async for kind, document in watch_events(
                    self.client, self.resource, self.namespace, labels=self.selector
                ):
                    backoff.reset()
                    self._handle(kind, document)
            except KfpMindSporeError as error:
                is_permanent = isinstance(error, (ForbiddenError, NotFoundError, NotInstalledError))
                hint = ""
                if is_permanent and not self.synced.is_set():
                    explained = self._explain(error)
                    if self.resource != WORKLOADS or isinstance(error, ForbiddenError):
                        raise explained from error
                    # Jobs without a queue need no Kueue; those with one report it.
                    hint = f" {explained.hint}"
                    self.synced.set()
                logging.getLogger(__name__).warning("watch of %s: %s%s", self.resource.plural, error.message, hint)
                await backoff.wait(error.message)

    def _handle(self, kind: str, document: Document) -> None:
        if kind == "LIST":
            self._listed = set()
        elif kind == "SYNCED":
            self._drop_unlisted(int(document["metadata"]["resourceVersion"]))
            self.synced.set()
        elif kind in ("OPENED", "CLOSED"):
            if self.resource == MSJOBS:
                self.store.connected_at = datetime.datetime.now(datetime.timezone.utc) if kind == "OPENED" else None
        elif kind == "DELETED":
            self._drop(document)
        else:
            if self._listed is not None:
                self._listed.add(str(document["metadata"].get("uid", "")))
            is_job = self.resource == MSJOBS
            self._notify(self.store.put_job(document) if is_job else self.store.put(self.resource, document))

    def _drop(self, document: Document) -> None:
        metadata = document["metadata"]
        if self.resource == MSJOBS:
            self._notify(self.store.drop_job(JobKey(metadata["namespace"], metadata["name"]), metadata["uid"]))
        elif (key := self.store.resolve_job(self.resource, document)) is not None:
            self._notify(self.store.drop(self.resource, key, metadata["name"], metadata["uid"]))

    def _drop_unlisted(self, version: int) -> None:
        """Drop objects that a complete list lacks; those created after the list have a later resourceVersion."""
        listed, self._listed = self._listed or set(), None
        if self.resource == MSJOBS:
            for key, uid, seen in self.store.list_jobs(self.namespace):
                if uid not in listed and seen <= version:
                    self._notify(self.store.drop_job(key, uid))
        else:
            for key, name, uid, seen in self.store.list_children(self.resource, self.namespace):
                if uid not in listed and seen <= version:
                    self._notify(self.store.drop(self.resource, key, name, uid))

    def _notify(self, key: JobKey | None) -> None:
        if key is not None:
            self.notify(key)

    def _explain(self, error: KfpMindSporeError) -> KfpMindSporeError:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        if isinstance(error, ForbiddenError):
            hint = (
                "Give the operator its role (kfp-mindspore operator install --image …), or other namespaces "
                "by --namespace."
            )
        elif self.resource == MSJOBS:
            hint = "Install the definition of MSJob: kfp-mindspore operator install --definition-only"
        elif self.resource == WORKLOADS:
            hint = f"Install Kueue 0.15 or later, which serves {self.resource.api_version}, or leave --kueue out."
        else:
            hint = f"The API {self.resource.api_version} is not installed; see --gang-scheduler."
        return KfpMindSporeError(f"cannot watch {self.resource.plural} {where}: {error.message}", hint=hint)
