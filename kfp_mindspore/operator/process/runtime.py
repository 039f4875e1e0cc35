"""The operator process: leader election, watches, workers and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import require_extra
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.msjob.api.kueue import WORKLOADS
from kfp_mindspore.msjob.api.names import MSJOBS, OPERATOR_LABEL
from kfp_mindspore.operator.options import OperatorOptions, get_pod_groups
from kfp_mindspore.operator.process.controller import Controller
from kfp_mindspore.operator.process.health import serve_health
from kfp_mindspore.operator.process.leader import Leader
from kfp_mindspore.operator.process.metrics import OperatorMetrics
from kfp_mindspore.operator.process.progress import ProgressReader
from kfp_mindspore.operator.process.recorder import Recorder
from kfp_mindspore.operator.process.store import JobCache
from kfp_mindspore.operator.process.watch import Watcher
from kfp_mindspore.operator.process.workqueue import WorkQueue

DEFAULT_WORKERS = 16
DEFAULT_PORT = 8080
# Time for reconciliations and events under way to finish after SIGTERM.
_DRAIN_SECONDS = 10.0
# Jobs whose requests fail for longer are queued again, with a delay.
_RETRY_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Settings:
    """An operator process's settings.

    Attributes:
        kubeconfig: A kubeconfig file; empty for `$KUBECONFIG`, `~/.kube/config` or, in a pod, the service account.
        context: A kubeconfig context; empty for the current one.
        namespaces: The jobs' namespaces; empty for all.
        options: The same for all jobs.
        workers: How many jobs are reconciled concurrently.
        host: The operator's HTTP address.
        port: The operator's HTTP port; 0 for a free one.
        leader_elect: Whether it works only while it holds the Lease.
        lease_namespace: The Lease's namespace; empty for the operator's.
    """

    kubeconfig: str = ""
    context: str = ""
    namespaces: tuple[str, ...] = ()
    options: OperatorOptions = field(default_factory=OperatorOptions)
    workers: int = DEFAULT_WORKERS
    host: str = "0.0.0.0"
    port: int = DEFAULT_PORT
    leader_elect: bool = False
    lease_namespace: str = ""


class OperatorProcess:
    """One operator process; `run` returns after SIGTERM.

    Args:
        settings: The settings.
        started: Called with the HTTP port once it listens.
    """

    def __init__(self, settings: Settings, started: Callable[[int], None] | None = None):
        self.settings = settings
        self.metrics = OperatorMetrics()
        self.store = JobCache()
        self.queue = WorkQueue()
        self._started = started or (lambda port: None)
        self._watchers: list[Watcher] = []
        self._unready_reason = "starting"
        self.metrics.track_states(self.store.states)
        self.metrics.track_queue(lambda: len(self.queue), lambda: self.queue.timers)

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            KfpMindSporeError: It cannot start (credentials, definition or role missing), or has lost the Lease.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        log = logging.getLogger(__name__)
        async with contextlib.AsyncExitStack() as stack:
            client = AsyncClient(
                self.settings.kubeconfig or None,
                self.settings.context or None,
                field_manager="kfp-mindspore-operator",
                retry_timeout=_RETRY_TIMEOUT_SECONDS,
                count_response=self.metrics.count_request,
            )
            stack.push_async_callback(client.close)
            config = await client.get_config()
            port = await stack.enter_async_context(
                serve_health(
                    self.settings.host,
                    self.settings.port,
                    healthy=lambda: "",
                    ready=lambda: self._unready_reason,
                    metrics=self.metrics.render,
                )
            )
            self._started(port)
            where = ", ".join(self.settings.namespaces) or "all namespaces"
            log.info("MSJobs of %s at %s; metrics and probes on port %d", where, config.server, port)
            if not self.settings.leader_elect:
                await self._act(client, stop)
                return
            namespace = self.settings.lease_namespace or config.namespace
            leader = Leader(client, namespace, f"{socket.gethostname()}_{os.getpid()}_{os.urandom(3).hex()}")
            self._unready_reason = ""
            if not await _wait_unless(stop, leader.acquire()):
                return
            holding = asyncio.create_task(leader.hold())
            acting = asyncio.create_task(self._act(client, stop))
            try:
                # After SIGTERM it holds the Lease until the work under way has ended.
                await asyncio.wait([holding, acting], return_when=asyncio.FIRST_COMPLETED)
                _raise_first([holding, acting])
            finally:
                await _cancel([acting, holding])
                await leader.release()

    async def _act(self, client: AsyncClient, stop: asyncio.Event) -> None:
        """Watch and work until stopped; then finish the work under way."""
        self._unready_reason = "listing"
        recorder = Recorder(client, self.metrics)
        progress = ProgressReader(client, self.store, self.queue.add)
        controller = Controller(client, self.store, self.queue, recorder, progress, self.metrics, self.settings.options)
        self._watchers = self._make_watchers(client)
        background = [asyncio.create_task(watcher.run()) for watcher in self._watchers]
        background.append(asyncio.create_task(recorder.run()))
        background.append(asyncio.create_task(progress.run()))
        workers: list[asyncio.Task[None]] = []
        stopping = asyncio.create_task(stop.wait())
        synced = asyncio.create_task(_wait_for_all([watcher.synced for watcher in self._watchers]))
        try:
            await asyncio.wait([synced, stopping, *background], return_when=asyncio.FIRST_COMPLETED)
            _raise_first(background)
            if stop.is_set():
                return
            jobs = sum(self.store.states.values())
            logging.getLogger(__name__).info("working; %d jobs found", jobs)
            self.metrics.leading.set(1)
            self._unready_reason = ""
            workers = [asyncio.create_task(controller.work()) for _ in range(self.settings.workers)]
            await asyncio.wait([stopping, *background, *workers], return_when=asyncio.FIRST_COMPLETED)
            _raise_first([*background, *workers])
            self.queue.close()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.queue.drain(), _DRAIN_SECONDS)
                await asyncio.wait_for(recorder.drain(), _DRAIN_SECONDS)
        finally:
            self.metrics.leading.set(0)
            # uvloop reports, with a traceback, each TLS connection that is closed while the server answers on it.
            asyncio.get_running_loop().set_exception_handler(_log_closed_connection)
            await _cancel([*workers, *background, synced, stopping])

    def _make_watchers(self, client: AsyncClient) -> list[Watcher]:
        groups = get_pod_groups(self.settings.options.gang_scheduler)
        children = [PODS, SERVICES, ENDPOINT_SLICES, *([groups] if groups else [])]
        if self.settings.options.kueue:
            children.append(WORKLOADS)
        selectors = {MSJOBS: "", **dict.fromkeys(children, OPERATOR_LABEL)}
        return [
            Watcher(client, self.store, resource, namespace, selector, self.queue.add)
            for namespace in self.settings.namespaces or ("",)
            for resource, selector in selectors.items()
        ]


def run_operator(settings: Settings, started: Callable[[int], None] | None = None) -> None:
    """Run an operator in this process until SIGTERM or SIGINT.

    Raises:
        KfpMindSporeError: As `OperatorProcess.run`.
        MissingExtraError: The extra `operator` is not installed.
    """
    with require_extra("uvloop", "operator"):
        import uvloop
    # Imported modules live as long as the process: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    uvloop.run(OperatorProcess(settings, started).run())


def _log_closed_connection(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logging.getLogger(__name__).debug("%s: %s", context["message"], context.get("exception"))


async def _wait_unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Wait for a coroutine; return whether it finished before the stop event."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        _raise_first([task])
        return task.done() and not stop.is_set()
    finally:
        await _cancel([task, stopping])


def _raise_first(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_for_all(events: list[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
