"""Watchers keep the store in sync across expired versions and restarts of the API server."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.resources import PODS
from kfp_mindspore.msjob.api.kueue import WORKLOADS
from kfp_mindspore.msjob.api.names import MSJOBS
from kfp_mindspore.operator.decisions.observed import LONG_AGO
from kfp_mindspore.operator.process.store import JobCache, JobKey
from kfp_mindspore.operator.process.watch import Watcher
from tests.support.kube.fake_api_server import FakeApiServer, respond_once

COLLECTION = PODS.get_path("ns")
LABELS = {"training.kubeflow.org/job-name": "job", "app": "x"}


def put(server: FakeApiServer, name: str, phase: str = "Pending") -> None:
    server.put(
        COLLECTION, {"metadata": {"namespace": "ns", "name": name, "labels": LABELS}, "status": {"phase": phase}}
    )


def phases(store: JobCache) -> dict[str, str]:
    entries = store.entries.values()
    return {name: child.view.phase for entry in entries for (_, name), child in entry.children.items()}  # type: ignore[union-attr]


class Watched:
    """A running watcher of pods, its store and the keys that it reported."""

    def __init__(self, client: AsyncClient) -> None:
        self.store = JobCache()
        self.reported: list[JobKey] = []
        self.watcher = Watcher(client, self.store, PODS, "ns", "app=x", self.reported.append)
        self.task = asyncio.create_task(self.watcher.run())

    async def wait_for(self, expected: dict[str, str]) -> None:
        while phases(self.store) != expected:
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(0.01)


def test_events_update_store(server: FakeApiServer, run: Callable[..., Any]) -> None:
    put(server, "a")

    async def work(client: AsyncClient) -> None:
        watched = Watched(client)
        await watched.wait_for({"a": "Pending"})
        assert watched.watcher.synced.is_set()
        put(server, "b")
        put(server, "a", "Running")
        await watched.wait_for({"a": "Running", "b": "Pending"})
        server.remove(COLLECTION, "a")
        await watched.wait_for({"b": "Pending"})
        assert watched.reported == [JobKey("ns", "job")] * 4
        watched.task.cancel()

    run(work)
    assert {request.query["labelSelector"] for request in server.requests} == {"app=x"}


def test_outage_is_in_store(server: FakeApiServer, run: Callable[..., Any]) -> None:
    async def work(client: AsyncClient) -> None:
        store = JobCache()
        task = asyncio.create_task(Watcher(client, store, MSJOBS, "ns", "", lambda _: None).run())

        async def wait_until(is_connected: bool) -> datetime.datetime | None:
            while store.connected_at == LONG_AGO or (store.connected_at is not None) != is_connected:
                await asyncio.sleep(0.01)
            return store.connected_at

        first = await wait_until(True)
        server.stop()
        await wait_until(False)
        server.start()
        assert first < await wait_until(True)
        task.cancel()

    run(work)


def test_expired_versions_list_again_and_drop_deleted_objects(server: FakeApiServer, run: Callable[..., Any]) -> None:
    put(server, "a")
    put(server, "b")

    async def work(client: AsyncClient) -> None:
        watched = Watched(client)
        await watched.wait_for({"a": "Pending", "b": "Pending"})
        server.stop()
        server.remove(COLLECTION, "a")
        server.compact()
        server.start()
        await watched.wait_for({"b": "Pending"})
        assert watched.reported == [JobKey("ns", "job")] * 3
        watched.task.cancel()

    run(work)


def test_watches_survive_outage_beyond_retry_timeout(server: FakeApiServer, run: Callable[..., Any]) -> None:
    put(server, "a")

    async def work(client: AsyncClient) -> None:
        client.retry_timeout = 0.3
        watched = Watched(client)
        await watched.wait_for({"a": "Pending"})
        server.faults.append(respond_once(403, reason="Forbidden", times=1))
        server.stop()
        await asyncio.sleep(1.0)
        put(server, "b")
        server.start()
        await watched.wait_for({"a": "Pending", "b": "Pending"})
        watched.task.cancel()

    run(work)


@pytest.mark.parametrize(("status", "hint"), [(404, "operator install"), (403, "role")])
def test_missing_definition_or_role_ends_first_list(
    server: FakeApiServer, run: Callable[..., Any], status: int, hint: str
) -> None:
    server.faults.append(respond_once(status, times=100))

    async def work(client: AsyncClient) -> None:
        watcher = Watcher(client, JobCache(), MSJOBS, "", "", lambda key: None)
        with pytest.raises(KfpMindSporeError, match=r"cannot watch msjobs in all namespaces: ") as caught:
            await watcher.run()
        assert hint in caught.value.hint

    run(work)


def test_missing_kueue_is_logged_and_waited_for(
    server: FakeApiServer, run: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    server.faults.append(respond_once(404, path="/workloads", times=1))

    async def work(client: AsyncClient) -> None:
        store = JobCache()
        watcher = Watcher(client, store, WORKLOADS, "ns", "", lambda key: None)
        task = asyncio.create_task(watcher.run())
        await watcher.synced.wait()
        (record,) = caplog.records
        assert "cannot list workloads.kueue.x-k8s.io" in record.message
        assert "Install Kueue 0.15 or later" in record.message
        server.put(WORKLOADS.get_path("ns"), {"metadata": {"namespace": "ns", "name": "msjob-job", "labels": LABELS}})
        while not store.entries:
            await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()

    run(work)
