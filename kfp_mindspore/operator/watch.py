"""Keeps the store in step with the API server: one consistent list, then a watch, for each kind and namespace."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.operator.api import Api, ApiError
from kfp_mindspore.operator.resources import JOBS, Resource
from kfp_mindspore.operator.store import Key, Kind, Store

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 10.0
_GONE = 410
# Nothing mends these but a person, so the operator says so and ends instead of trying for ever.
_HOPELESS = frozenset({403, 404})

Notify = Callable[[Key], None]


@dataclass
class Watcher:
    """One kind of objects in one namespace, or in all.

    Attributes:
        api: The client.
        store: What is kept in step.
        resource: What is watched.
        kind: The store's word for it; None for jobs.
        namespace: Empty for all.
        selector: A label selector; empty for all objects.
        notify: Called with the key of each job of which something has changed.
        synced: Set when the first list is in the store.
    """

    api: Api
    store: Store
    resource: Resource
    kind: Kind | None
    namespace: str
    selector: str
    notify: Notify
    synced: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """List and watch until cancelled, through restarts of the API server and versions that it no longer knows.

        Raises:
            KfpMindSporeError: The operator may not read this kind, or there is no such kind.
        """
        version = ""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                if not version:
                    version = await self._list()
                    self.synced.set()
                async for event in self.api.watch(self.resource, self.namespace, version, self.selector):
                    version = str(event["object"]["metadata"]["resourceVersion"])
                    pause = _FIRST_PAUSE_SECONDS
                    if event["type"] != "BOOKMARK":
                        self._take(event["type"], event["object"])
                # The server ends a watch after its time; one that ends each at once must not be asked without a break.
                await asyncio.sleep(random.uniform(0, 0.2))
            except ApiError as error:
                if error.code in _HOPELESS and not self.synced.is_set():
                    raise self._explain(error) from error
                if error.code == _GONE:
                    version = ""
                    logging.getLogger(__name__).info("%s: the version is too old, listing again", self.resource.plural)
                    # A server that is out of step says so again and again.
                    await asyncio.sleep(random.uniform(0, pause))
                    continue
                pause = await self._wait(pause, error)
            except (OSError, asyncio.TimeoutError, ValueError, _client_error()) as error:
                pause = await self._wait(pause, error)

    async def _wait(self, pause: float, error: Exception) -> float:
        seconds = pause * random.uniform(0.5, 1.5)
        text = str(error) or type(error).__name__
        logging.getLogger(__name__).warning("watch of %s: %s; again in %.1f s", self.resource.plural, text, seconds)
        await asyncio.sleep(seconds)
        return min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _list(self) -> str:
        """Take in what is there, and forget what is not; return the list's resourceVersion."""
        found: set[str] = set()
        version = ""
        async for items, version in self.api.list_pages(self.resource, self.namespace, self.selector):  # noqa: B007
            for item in items:
                found.add(str(item["metadata"].get("uid", "")))
                self._take("ADDED", item)
            # A page takes long enough that others should come to their turn.
            await asyncio.sleep(0)
        # What was made after the list is not in it.
        limit = int(version)
        if self.kind is None:
            for key, uid, seen in self.store.list_jobs(self.namespace):
                if uid not in found and seen <= limit:
                    self._notify(self.store.drop_job(key, uid))
        else:
            for key, name, uid, seen in self.store.list_children(self.kind, self.namespace):
                if uid not in found and seen <= limit:
                    self._notify(self.store.drop(self.kind, key, name, uid))
        return version

    def _take(self, event: str, document: Mapping[str, Any]) -> None:
        metadata = document["metadata"]
        if self.kind is None:
            if event == "DELETED":
                self._notify(self.store.drop_job(Key(metadata["namespace"], metadata["name"]), metadata["uid"]))
            else:
                self._notify(self.store.put_job(document))
        elif event != "DELETED":
            self._notify(self.store.put(self.kind, document))
        elif (key := self.store.find_job(self.kind, document)) is not None:
            self._notify(self.store.drop(self.kind, key, metadata["name"], metadata["uid"]))

    def _notify(self, key: Key | None) -> None:
        if key is not None:
            self.notify(key)

    def _explain(self, error: ApiError) -> KfpMindSporeError:
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        if error.code == 404 and self.resource == JOBS:
            hint = "Install the definition of MSJob: kfp-mindspore operator install --definition-only"
        elif error.code == 404:
            hint = f"The API {self.resource.api_version} is not installed; see --gang-scheduler."
        else:
            hint = (
                "Give the operator its role (kfp-mindspore operator install --image …), or other namespaces "
                "by --namespace."
            )
        return KfpMindSporeError(f"cannot watch {self.resource.plural} {where}: {error.message}", hint=hint)


def _client_error() -> type[Exception]:
    import aiohttp

    return aiohttp.ClientError
