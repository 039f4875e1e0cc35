"""Kubernetes events on jobs, written in the background; repeated events increase the first event's count."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import socket
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.errors import ForbiddenError
from kfp_mindspore.kube.resources import EVENTS
from kfp_mindspore.msjob.api.manifest import now
from kfp_mindspore.msjob.api.names import API_VERSION, KIND
from kfp_mindspore.operator.decisions.actions import EmitEvent
from kfp_mindspore.operator.process.metrics import OperatorMetrics
from kfp_mindspore.operator.process.store import JobKey

COMPONENT = "msjob-controller"
_LONGEST_MESSAGE = 1000
_QUEUED = 10_000
_CACHED_EVENTS = 4096
_SENDERS = 2
_REPEATS_WITHIN = datetime.timedelta(minutes=10)


@dataclass
class _Written:
    name: str
    count: int
    time: datetime.datetime


class Recorder:
    """Writes events; refused ones are counted and dropped.

    Args:
        client: The client.
        metrics: Counts lost events.
    """

    def __init__(self, client: AsyncClient, metrics: OperatorMetrics):
        self._client = client
        self._metrics = metrics
        self._queue: asyncio.Queue[tuple[JobKey, str, EmitEvent, datetime.datetime]] = asyncio.Queue(_QUEUED)
        self._written: OrderedDict[tuple[str, EmitEvent], _Written] = OrderedDict()

    def record(self, key: JobKey, uid: str, event: EmitEvent) -> None:
        """Queue an event."""
        try:
            self._queue.put_nowait((key, uid, event, now()))
        except asyncio.QueueFull:
            self._metrics.lost_events.inc()

    async def run(self) -> None:
        """Write until cancelled."""
        await asyncio.gather(*(self._send() for _ in range(_SENDERS)))

    async def drain(self) -> None:
        """Wait until all queued events are written."""
        await self._queue.join()

    async def _send(self) -> None:
        while True:
            key, uid, event, time = await self._queue.get()
            try:
                await self._write(key, uid, event, time)
            except KfpMindSporeError as error:
                self._metrics.lost_events.inc()
                # Namespaces that are being deleted refuse events.
                level = logging.DEBUG if isinstance(error, (NotFoundError, ForbiddenError)) else logging.WARNING
                logging.getLogger(__name__).log(level, "event lost: %s", error.message, extra={"job": str(key)})
            finally:
                self._queue.task_done()

    async def _write(self, key: JobKey, uid: str, event: EmitEvent, time: datetime.datetime) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ")
        found = self._written.get((uid, event))
        if found is not None and time - found.time < _REPEATS_WITHIN:
            found.count, found.time = found.count + 1, time
            body = {"count": found.count, "lastTimestamp": stamp}
            # The API server keeps events for an hour.
            with contextlib.suppress(NotFoundError):
                await self._client.patch(EVENTS, found.name, key.namespace, body)
                return
        name = f"{key.name}.{os.urandom(8).hex()}"
        await self._client.create(EVENTS, _build_event(key, uid, event, name, stamp), key.namespace)
        self._written[(uid, event)] = _Written(name, 1, time)
        if len(self._written) > _CACHED_EVENTS:
            self._written.popitem(last=False)


def _build_event(key: JobKey, uid: str, event: EmitEvent, name: str, stamp: str) -> dict[str, Any]:
    message = event.message
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 1] + "…"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": key.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": key.namespace,
            "name": key.name,
            "uid": uid,
        },
        "type": event.type,
        "reason": event.reason,
        "message": message,
        "source": {"component": COMPONENT, "host": socket.gethostname()},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
