"""Collections as they change: one list, then a watch, mended by another list when it breaks."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kfp_mindspore.kube.connection import Pauses, find_transport_errors
from kfp_mindspore.kube.errors import ExpiredError, Request
from kfp_mindspore.kube.logs import read_lines
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.kube.stop import Stop

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

Document = dict[str, Any]

# The server ends a watch after so long, and a new one goes on where it was.
_WATCH_SECONDS = 290.0
# Bookmarks come about once a minute, so a watch as silent as this has lost its server.
_SILENCE_SECONDS = 150.0
# A watch that held for so long was a good one; what comes after it is fresh trouble.
_GOOD_SECONDS = 5.0


class _BrokenError(Exception):
    """The watch cannot go on from where it is."""


def watch(
    cluster: Cluster,
    resource: Resource,
    namespace: str,
    *,
    labels: str = "",
    fields: str = "",
    timeout: float | None = None,
    stop: Stop | None = None,
) -> Iterator[Mapping[str, Document]]:
    """Yield the objects of a collection by name, now and after each change; see `Cluster.watch`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    pauses = Pauses(cluster.connection.patience)
    what = f"cannot watch {resource.full_name}{f' in namespace {namespace}' if namespace else ''}"
    version = ""
    objects: dict[str, Document] = {}
    while True:
        if not version:
            items, version = cluster.list_with_version(resource, namespace, labels=labels, fields=fields)
            objects = {item["metadata"]["name"]: item for item in items}
            yield MappingProxyType(objects)
        if deadline is not None and time.monotonic() >= deadline:
            return
        began = time.monotonic()
        trouble = ""
        try:
            for kind, item in _read_events(cluster, resource, namespace, labels, fields, version, deadline, stop):
                pauses.reset()
                version = item["metadata"].get("resourceVersion") or version
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    objects.pop(item["metadata"]["name"], None)
                else:
                    objects[item["metadata"]["name"]] = item
                yield MappingProxyType(objects)
                if deadline is not None and time.monotonic() >= deadline:
                    return
        except (ExpiredError, _BrokenError) as error:
            trouble, version = str(error), ""
        except find_transport_errors() as error:
            trouble = "" if _is_silence(error) else cluster.connection.describe(error)
        if stop:
            return
        held = time.monotonic() - began
        if held >= _GOOD_SECONDS:
            pauses.reset()
        if trouble or held < 0.01:
            pauses.wait(f"{what}: {trouble or 'each watch ends at once'}")


def _read_events(
    cluster: Cluster,
    resource: Resource,
    namespace: str,
    labels: str,
    fields: str,
    version: str,
    deadline: float | None,
    stop: Stop | None,
) -> Iterator[tuple[str, Document]]:
    """Yield what one watch says until the server ends it."""
    left = _WATCH_SECONDS if deadline is None else max(0.05, min(_WATCH_SECONDS, deadline - time.monotonic()))
    query = {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": max(1, math.ceil(left)),
        "labelSelector": labels,
        "fieldSelector": fields,
    }
    request = Request("watch", resource.full_name, namespace=namespace)
    with cluster.connection.stream(
        request, resource.locate(namespace), query, read_timeout=min(left, _SILENCE_SECONDS), stop=stop
    ) as response:
        for line in read_lines(response):
            try:
                event = json.loads(line)
                kind, item = event["type"], event["object"]
            except (ValueError, KeyError, TypeError):
                raise _BrokenError("a line of the watch is no event; it was cut off") from None
            if kind == "ERROR":
                raise _BrokenError(str(item.get("message") or item))
            yield kind, item


def _is_silence(error: Exception) -> bool:
    import urllib3

    return isinstance(error, urllib3.exceptions.ReadTimeoutError)
