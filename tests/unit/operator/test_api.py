"""The client and the watchers against a server that fails on purpose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.operator.api import Api, ApiError
from kfp_mindspore.operator.resources import JOBS, PODS
from kfp_mindspore.operator.store import Key, Store
from kfp_mindspore.operator.watch import Watcher
from tests.support.scripted_api import refuse, run, serve


def make_pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "job"}
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}, "status": {"phase": phase}}


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_what_passes_is_asked_again(tmp_path: Path, code: int) -> None:
    answers = [refuse(code, "Busy"), refuse(code, "Busy"), web.json_response({"ok": True})]

    async def handler(request: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async def work() -> None:
        async with serve(handler, tmp_path) as (server, api):
            assert await api.get(PODS, "ns", "pod") == {"ok": True}
            assert len(server.asked) == 3
            assert {request.headers["Authorization"] for request in server.asked} == {"Bearer secret"}

    run(work)


def test_it_waits_as_long_as_it_is_told(tmp_path: Path) -> None:
    times: list[float] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        return refuse(429, "TooManyRequests", **{"Retry-After": "1"}) if len(times) == 1 else web.json_response({})

    async def work() -> None:
        async with serve(handler, tmp_path) as (_, api):
            await api.get(PODS, "ns", "pod")

    run(work)
    assert times[1] - times[0] >= 1


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422])
def test_what_does_not_pass_is_asked_once(tmp_path: Path, code: int) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return refuse(code, "Why")

    async def work() -> None:
        async with serve(handler, tmp_path) as (server, api):
            with pytest.raises(ApiError, match="because of Why") as caught:
                await api.create(PODS, "ns", {})
            assert (caught.value.code, caught.value.reason) == (code, "Why")
            assert len(server.asked) == 1

    run(work)


def test_a_connection_that_breaks_is_made_anew(tmp_path: Path) -> None:
    count = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count == 1:
            assert request.transport is not None
            request.transport.close()
        return web.json_response({"count": count})

    async def work() -> None:
        async with serve(handler, tmp_path) as (_, api):
            assert (await api.get(PODS, "ns", "pod"))["count"] >= 2

    run(work)


def test_a_token_that_is_no_longer_taken_is_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] == "Bearer old":
            token.write_text("new")
            return refuse(401, "Unauthorized")
        return web.json_response({"by": request.headers["Authorization"]})

    async def work() -> None:
        async with serve(handler, tmp_path, tokenFile=str(token)) as (_, api):
            assert await api.get(PODS, "ns", "pod") == {"by": "Bearer new"}

    run(work)


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


async def _watch(api: Api, until: Callable[[Store], bool]) -> list[Key]:
    """Run a watcher of pods until the store is as expected; return whom it told of."""
    store, told = Store(), list[Key]()
    watcher = Watcher(api, store, PODS, "pods", "ns", "app", told.append)
    task = asyncio.create_task(watcher.run())
    while not until(store):
        assert not task.done(), task.exception()
        await asyncio.sleep(0.01)
    task.cancel()
    return told


def _phases(store: Store) -> dict[str, str]:
    entries = store.entries.values()
    return {name: seen.view.phase for entry in entries for (_, name), seen in entry.children.items()}  # type: ignore[union-attr]


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
            watcher = Watcher(api, Store(), JOBS, None, "", "", lambda key: None)
            with pytest.raises(
                KfpMindSporeError, match="cannot watch msjobs in all namespaces: because of Why"
            ) as caught:
                await watcher.run()
            assert hint in caught.value.hint

    run(work)
