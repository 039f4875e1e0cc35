"""Progress of jobs, read from logs of a fake API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.msjob.api.status import TrainingProgress
from kfp_mindspore.operator.process.progress import ProgressReader
from kfp_mindspore.operator.process.store import JobCache, JobKey
from tests.support.kube.fake_api_server import FakeApiServer
from tests.support.kube.simulated_cluster import make_job

KEY = JobKey("team", "digits")


def make_store(state: str) -> JobCache:
    store = JobCache()
    store.put_job(make_job(2) | {"status": {"state": state}})
    return store


def test_changed_progress_is_stored(run: Callable[..., Any], server: FakeApiServer) -> None:
    store = make_store("Running")

    async def work(client: AsyncClient) -> None:
        reader = ProgressReader(client, store, lambda _: None)
        # The pod has not started.
        assert not await reader.read(KEY)
        server.write("digits-worker-0", 'T KFP_MINDSPORE_PROGRESS {"percentage": 45}', "T epoch 5", end=True)
        assert await reader.read(KEY)
        assert not await reader.read(KEY)

    run(work)
    assert store.observe(KEY)[0].progress == TrainingProgress(45)


def test_only_running_jobs_are_read(run: Callable[..., Any], server: FakeApiServer) -> None:
    server.write("digits-worker-0", 'T KFP_MINDSPORE_PROGRESS {"percentage": 45}', end=True)

    async def work(client: AsyncClient, state: str) -> bool:
        changed = asyncio.Event()
        reading = asyncio.create_task(ProgressReader(client, make_store(state), lambda _: changed.set()).run())
        await asyncio.wait([reading, asyncio.create_task(changed.wait())], timeout=0.3 if state != "Running" else None,
                           return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
        reading.cancel()
        return changed.is_set()

    assert run(lambda client: work(client, "Running"))
    requests = len(server.requests)
    assert not run(lambda client: work(client, "Restarting"))
    assert len(server.requests) == requests
