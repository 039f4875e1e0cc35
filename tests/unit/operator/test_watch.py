"""Watchers against a server with injected faults."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube import PODS, AsyncClient
from kfp_mindspore.operator.resources import JOBS
from kfp_mindspore.operator.store import Key, Store
from kfp_mindspore.operator.watch import Watcher
from tests.support.scripted_api import refuse, run, serve


def make_pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "job"}
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}, "status": {"phase": phase}}


async def _stream(request: web.Request, *chunks: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    return response


def _event(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _list(*items: dict[str, Any], version: int = 10, token: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(items)})


async def _watch(api: AsyncClient, until: Callable[[Store], bool]) -> list[Key]:
    """Run a watcher of pods until the store is as expected; return whom it told of."""
    store, told = Store(), list[Key]()
    watcher = Watcher(api, store, PODS, "ns", "app", told.append)
    task = asyncio.create_task(watcher.run())
    while not until(store):
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    task.cancel()
    return told


def _phases(store: Store) -> dict[str, str]:
    entries = store.entries.values()
    return {name: child.view.phase for entry in entries for (_, name), child in entry.children.items()}  # type: ignore[union-attr]


def test_lines_are_put_together_however_they_are_cut(tmp_path: Path) -> None:
    line = _event("ADDED", make_pod("a", 11)) + _event("MODIFIED", make_pod("a", 12, "Running"))

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _list()
        if request.query["resourceVersion"] == "10":
            return await _stream(request, line[:30], line[30:210], line[210:])
        return await _stream(request)

    async def work() -> None:
        async with serve(handler, tmp_path) as (server, api):
            await _watch(api, lambda store: _phases(store) == {"a": "Running"})
            assert {request.query["labelSelector"] for request in server.asked} == {"app"}

    run(work)


def test_a_stream_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return _list(make_pod("a", 5))
        if request.query["resourceVersion"] == "10":
            await _stream(request, _event("ADDED", make_pod("b", 11)), b'{"type": "ADD')
            assert request.transport is not None
            request.transport.close()
        if request.query["resourceVersion"] == "11":
            return await _stream(request, _event("DELETED", make_pod("a", 12)))
        return await _stream(request)

    async def work() -> None:
        async with serve(handler, tmp_path) as (server, api):
            await _watch(api, lambda store: _phases(store) == {"b": "Pending"})
            assert len([request for request in server.asked if "watch" not in request.query]) == 1

    run(work)


@pytest.mark.parametrize("how", ["status", "event"])
def test_a_version_that_is_too_old_means_a_new_list(tmp_path: Path, how: str) -> None:
    """What the second list no longer holds is gone, and told."""
    lists = [_list(make_pod("a", 5), make_pod("b", 6)), _list(make_pod("b", 6), version=20)]

    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return lists.pop(0)
        if request.query["resourceVersion"] == "10":
            if how == "status":
                return refuse(410, "Expired")
            return await _stream(request, _event("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}))
        return await _stream(request)

    async def work() -> None:
        async with serve(handler, tmp_path) as (_, api):
            told = await _watch(api, lambda store: not lists and _phases(store) == {"b": "Pending"})
            assert told.count(Key("ns", "job")) == 3

    run(work)


def test_a_list_comes_by_the_page_and_begins_anew_when_it_is_too_old(tmp_path: Path) -> None:
    pages = iter(
        [
            _list(make_pod("a", 5), token="next"),
            refuse(410, "Expired"),
            _list(make_pod("a", 5), token="again"),
            _list(make_pod("b", 6)),
        ]
    )

    async def handler(request: web.Request) -> web.StreamResponse:
        return await _stream(request) if "watch" in request.query else next(pages)

    async def work() -> None:
        async with serve(handler, tmp_path) as (server, api):
            await _watch(api, lambda store: set(_phases(store)) == {"a", "b"})
            tokens = [request.query.get("continue") for request in server.asked if "watch" not in request.query]
            assert tokens == [None, "next", None, "again"]

    run(work)


@pytest.mark.parametrize(("code", "hint"), [(404, "operator install"), (403, "role")])
def test_what_only_a_person_can_mend_ends_it_with_the_next_step(tmp_path: Path, code: int, hint: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return refuse(code, "Why")

    async def work() -> None:
        async with serve(handler, tmp_path) as (_, api):
            watcher = Watcher(api, Store(), JOBS, "", "", lambda key: None)
            with pytest.raises(
                KfpMindSporeError, match=r"cannot watch msjobs in all namespaces: .*because of Why"
            ) as caught:
                await watcher.run()
            assert hint in caught.value.hint

    run(work)
