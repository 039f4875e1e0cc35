"""The synchronous client: a facade over `AsyncClient`, whose event loop runs in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future, TimeoutError
from typing import Any, Generic, TypeVar

from kfp_mindspore.kube.client import AsyncClient, Document, Documents
from kfp_mindspore.kube.errors import ApiRequest
from kfp_mindspore.kube.logs import follow_log, read_log
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.kube.watch import watch_collection

_CLOSE_SECONDS = 2.0

T = TypeVar("T")


class CancellationToken:
    """Ends watches and logs that other threads read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_cancelled

    def cancel(self) -> None:
        """End all iterations that have this token, present and future."""
        with self._lock:
            self._is_cancelled = True
            for future in self._futures:
                future.cancel()

    @contextlib.contextmanager
    def guard(self, future: Future[Any]) -> Iterator[None]:
        """Cancel a future with the token while the block runs."""
        with self._lock:
            self._futures.add(future)
            if self._is_cancelled:
                future.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._futures.discard(future)


class Cluster:
    """A synchronous client for one API server and any number of threads; connects on first use.

    Its methods have the same arguments, results and errors as `AsyncClient`'s.

    Args:
        kubeconfig: Kubeconfig file; default KUBECONFIG, then ~/.kube/config, then the pod's service account.
        context: The kubeconfig's context; default the current one.
        retry_timeout: Seconds for which an API server that has responded before is retried.
    """

    def __init__(
        self,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        *,
        retry_timeout: float = 300.0,
    ) -> None:
        self._loop = _start_loop()
        self._client = AsyncClient(kubeconfig, context, retry_timeout=retry_timeout)
        weakref.finalize(self, _close, self._client, self._loop)

    @property
    def namespace(self) -> str:
        """The context namespace, or the pod's."""
        return self._run(self._client.get_config()).namespace

    def get(self, resource: Resource, name: str, namespace: str = "", *, subresource: str = "") -> Document:
        """Return an object."""
        return self._run(self._client.get(resource, name, namespace, subresource=subresource))

    def list(self, resource: Resource, namespace: str = "", *, labels: str = "", fields: str = "") -> Documents:
        """Return a collection's objects."""
        return self._run(self._client.list(resource, namespace, labels=labels, fields=fields))

    def create(
        self,
        resource: Resource,
        document: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        manager: str = "",
        dry_run: bool = False,
    ) -> Document:
        """Create an object; unknown fields are refused."""
        return self._run(
            self._client.create(
                resource, document, namespace, subresource=subresource, manager=manager, dry_run=dry_run
            )
        )

    def patch(
        self, resource: Resource, name: str, namespace: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Document:
        """Apply a JSON merge patch to an object."""
        return self._run(self._client.patch(resource, name, namespace, patch, subresource=subresource))

    def apply(
        self, document: Mapping[str, Any], *, manager: str = "", force: bool = True, dry_run: bool = False
    ) -> Document:
        """Apply an object by server-side apply."""
        return self._run(self._client.apply(document, manager=manager, force=force, dry_run=dry_run))

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        propagation: str = "Background",
        grace_seconds: int | None = None,
        uid: str = "",
    ) -> None:
        """Request an object's deletion, which may continue after this returns."""
        self._run(
            self._client.delete(
                resource, name, namespace, propagation=propagation, grace_seconds=grace_seconds, uid=uid
            )
        )

    def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        timeout: float | None = None,
        token: CancellationToken | None = None,
    ) -> Iterator[Mapping[str, Document]]:
        """Yield a collection's objects by name: the present state, and again after each change.

        Args:
            resource: Their kind.
            namespace: Their namespace; empty for all, whose names then must differ.
            labels: Label selector.
            fields: Field selector.
            timeout: Seconds after which it ends, not before the present state; None for no limit.
            token: Ends it from another thread.
        """
        states = watch_collection(self._client, resource, namespace, labels=labels, fields=fields)
        return self._iterate(states, timeout, token)

    def read_log(
        self, pod: str, namespace: str, *, container: str = "", last: int | None = None, previous: bool = False
    ) -> str:
        """Return a container's log; see `kfp_mindspore.kube.logs.read_log`."""
        return self._run(read_log(self._client, pod, namespace, container=container, last=last, previous=previous))

    def stream_log(
        self, pod: str, namespace: str, *, container: str = "", uid: str = "", token: CancellationToken | None = None
    ) -> Iterator[str]:
        """Yield a container's lines until it terminates; see `kfp_mindspore.kube.logs.follow_log`."""
        batches = follow_log(self._client, pod, namespace, container=container, uid=uid)
        for lines in self._iterate(batches, None, token):
            yield from lines

    def resolve_resource(self, api_version: str, kind: str) -> Resource:
        """Return a kind's resource, by API discovery."""
        return self._run(self._client.resolve_resource(api_version, kind))

    def request(
        self, request: ApiRequest, method: str, path: str, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """Send any other request."""
        return self._run(self._client.request(request, method, path, query, body))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Such as KeyboardInterrupt.
            future.cancel()
            raise

    def _iterate(
        self, items: AsyncGenerator[T, None], timeout: float | None, token: CancellationToken | None
    ) -> Iterator[T]:
        deadline = None if timeout is None else time.monotonic() + timeout
        steps = _Steps(items)
        left: float | None = None
        try:
            while left is None or left > 0:
                future = asyncio.run_coroutine_threadsafe(steps.get_next(), self._loop)
                try:
                    with token.guard(future) if token is not None else contextlib.nullcontext():
                        item = future.result(left)
                except (CancelledError, TimeoutError):
                    return
                finally:
                    future.cancel()
                if item is None:
                    return
                yield item
                left = None if deadline is None else deadline - time.monotonic()
        finally:
            self._run(steps.close())


class _Steps(Generic[T]):
    """An asynchronous generator, advanced by one task at a time, also when the one before was cancelled."""

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._lock = asyncio.Lock()

    async def get_next(self) -> T | None:
        """Return the next item; None at the end."""
        async with self._lock:
            return await anext(self._items, None)

    async def close(self) -> None:
        """Close the generator."""
        async with self._lock:
            await self._items.aclose()


@functools.cache
def _start_loop() -> asyncio.AbstractEventLoop:
    """Start the event loop for all clusters in this process, in a daemon thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="kubernetes client", daemon=True).start()
    return loop


def _close(client: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
    closing = asyncio.run_coroutine_threadsafe(client.close(), loop)
    # At exit, connections that are still open would be reported; within the loop, waiting would block it.
    if threading.current_thread() is threading.main_thread():
        closing.result(_CLOSE_SECONDS)
