"""Fixtures of the operator's parts: a fake API server, and coroutines run with a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.kube.client import AsyncClient
from tests.support.kube.fake_api_server import FakeApiServer

SECONDS = 300
Run = Callable[[Callable[[AsyncClient], Awaitable[Any]]], Any]


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer().serve() as started:
        yield started


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig", namespace="home")


@pytest.fixture
def run(kubeconfig: Path) -> Run:
    """A function that runs a coroutine with a client of the server."""

    def run_with_client(work: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
        async def limited() -> Any:
            client = AsyncClient(kubeconfig, retry_timeout=5.0)
            try:
                return await asyncio.wait_for(work(client), SECONDS)
            finally:
                await client.close()

        return asyncio.run(limited())

    return run_with_client
