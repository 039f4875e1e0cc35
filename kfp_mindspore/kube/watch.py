"""A collection's list-and-watch, resumed after broken connections and expired resource versions."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from kfp_mindspore.kube.backoff import Backoff
from kfp_mindspore.kube.client import AsyncClient, Document, transport_errors
from kfp_mindspore.kube.errors import ApiRequest, ExpiredError
from kfp_mindspore.kube.resources import Resource

# The server sends bookmarks about once a minute: a longer silence means that the connection is dead.
_SILENCE_SECONDS = 150.0
# A watch that lasted this long was healthy: the backoff starts again.
_HEALTHY_SECONDS = 5.0


class WatchEvent(NamedTuple):
    """A collection change.

    Attributes:
        type: `LIST`: the ADDED events up to the next SYNCED are the whole collection. `SYNCED`: the list is complete;
            the object holds its resourceVersion only. `OPENED`, `CLOSED`: the server reports changes from now on, or no
            longer; without an object.
        object: The object.
    """

    type: Literal["LIST", "SYNCED", "OPENED", "CLOSED", "ADDED", "MODIFIED", "DELETED"]
    object: Document


class _InterruptedWatchError(Exception):
    """The watch cannot be resumed at its resource version."""


async def watch_events(
    client: AsyncClient, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
) -> AsyncGenerator[WatchEvent, None]:
    """Yield a collection and its changes.

    Args:
        client: The client.
        resource: The objects' kind.
        namespace: Their namespace; empty for all.
        labels: Label selector.
        fields: Field selector.

    Raises:
        UnreachableError: The API server failed for longer than the client's retry timeout.
        ForbiddenError: Listing or watching is not allowed.
        NotInstalledError: The API server does not know the kind.
    """
    backoff = Backoff(client.retry_timeout)
    where = f" in namespace {namespace}" if namespace else ""
    version = ""
    while True:
        started = time.monotonic()
        failure = ""
        try:
            if not version:
                yield WatchEvent("LIST", {})
                async for items, listed in client.list_pages(resource, namespace, labels=labels, fields=fields):
                    for item in items:
                        yield WatchEvent("ADDED", item)
                    version = listed
                yield WatchEvent("SYNCED", {"metadata": {"resourceVersion": version}})
                started = time.monotonic()
            async for kind, item in _read_events(client, resource, namespace, labels, fields, version):
                if kind == "OPENED":
                    yield WatchEvent(kind, item)
                    continue
                backoff.reset()
                version = item["metadata"].get("resourceVersion") or version
                if kind != "BOOKMARK":
                    yield WatchEvent(kind, item)
        except (ExpiredError, _InterruptedWatchError) as error:
            failure, version = str(error), ""
        except transport_errors() as error:
            failure = "" if _is_silence(error) else client.describe(error)
        yield WatchEvent("CLOSED", {})
        lasted = time.monotonic() - started
        if lasted >= _HEALTHY_SECONDS:
            backoff.reset()
        if failure or lasted < 0.01:
            await backoff.wait(f"cannot watch {resource.full_name}{where}: {failure or 'each watch ends at once'}")


async def watch_collection(
    client: AsyncClient, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = ""
) -> AsyncGenerator[Mapping[str, Document], None]:
    """Yield a collection's objects by name: the present state, and again after each change; see `watch_events`."""
    objects: dict[str, Document] = {}
    is_synced = False
    async for kind, item in watch_events(client, resource, namespace, labels=labels, fields=fields):
        if kind == "LIST":
            objects, is_synced = {}, False
        elif kind == "SYNCED":
            is_synced = True
        elif kind in ("OPENED", "CLOSED"):
            continue
        elif kind == "DELETED":
            objects.pop(item["metadata"]["name"], None)
        else:
            objects[item["metadata"]["name"]] = item
        if is_synced:
            yield MappingProxyType(objects)


async def _read_events(
    client: AsyncClient, resource: Resource, namespace: str, labels: str, fields: str, version: str
) -> AsyncIterator[tuple[Any, Document]]:
    """Yield one watch's events until the server ends it."""
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        # Random, so that watches do not all reconnect at once.
        "timeoutSeconds": random.randint(240, 480),
        "labelSelector": labels,
        "fieldSelector": fields,
    }
    request = ApiRequest("watch", resource.full_name, namespace=namespace)
    path = resource.get_path(namespace)
    async with client.stream(request, path, query, read_timeout=_SILENCE_SECONDS) as batches:
        yield "OPENED", {}
        async for lines in batches:
            for line in lines:
                try:
                    event = json.loads(line)
                    kind, item = event["type"], event["object"]
                except (ValueError, KeyError, TypeError):
                    raise _InterruptedWatchError("an incomplete event: the stream was cut off") from None
                if kind == "ERROR":
                    raise _InterruptedWatchError(str(item.get("message") or item))
                yield kind, item


def _is_silence(error: Exception) -> bool:
    import aiohttp

    return isinstance(error, aiohttp.SocketTimeoutError)
