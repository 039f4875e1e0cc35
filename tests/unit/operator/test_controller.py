"""In which order a controller asks the API server for what was decided."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.kube import ENDPOINT_SLICES, SERVICES
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.controller import Controller
from kfp_mindspore.operator.metrics import Metrics
from kfp_mindspore.operator.observed import PodView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.recorder import Recorder
from kfp_mindspore.operator.services import build_endpoint_slice, build_service
from kfp_mindspore.operator.store import Key, Store
from kfp_mindspore.operator.workqueue import WorkQueue
from tests.support.scripted_api import refuse, run, serve
from tests.support.simulated_cluster import make_job

Asked = list[tuple[str, str, dict[str, Any]]]


class Script:
    """An API server that takes everything, but for what is refused."""

    def __init__(self, refused: dict[str, web.Response] | None = None) -> None:
        self.asked: Asked = []
        self.refused = refused or {}
        self._numbers = itertools.count(100)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path.split("/namespaces/team/")[1]
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.method, path, body))
        if (refusal := self.refused.pop(f"{request.method} {path}", None)) is not None:
            return refusal
        metadata = {**body.get("metadata", {}), "resourceVersion": str(next(self._numbers))}
        spec = {**body.get("spec", {}), **({"clusterIP": "10.96.0.1"} if path == "services" else {})}
        metadata.setdefault("uid", f"uid-{path}-{metadata.get('name')}")
        return web.json_response({**body, "metadata": metadata, "spec": spec})

    @property
    def words(self) -> list[str]:
        return [f"{method} {path.removeprefix('msjobs/')}" for method, path, _ in self.asked]


def work_on(
    directory: Path, script: Script, jobs: int, workers: int = 2, store: Store | None = None
) -> tuple[Store, list[str]]:
    """Give a new controller some new jobs; return what it knows in the end, and what went wrong."""
    store, errors = store or Store(), []

    async def work() -> None:
        async with serve(script.answer, directory) as (_, api):
            queue, metrics = WorkQueue(), Metrics()
            recorder = Recorder(api, metrics)
            controller = Controller(api, store, queue, recorder, metrics, Options())
            for number in range(jobs):
                job = make_job(2)
                job["metadata"].update(name=f"job-{number}", uid=f"uid-{number}")
                queue.add(store.put_job(job) or Key("", ""))
            recording = asyncio.create_task(recorder.run())

            async def look() -> None:
                while len(queue):
                    key, _ = await queue.get()
                    try:
                        await controller.process(key)
                    except KfpMindSporeError as error:
                        errors.append(error.message)
                    queue.done(key)

            await asyncio.gather(*(look() for _ in range(workers)))
            await recorder.drain()
            recording.cancel()

    run(work)
    return store, errors


def test_status_is_written_before_actions_and_events(tmp_path: Path) -> None:
    script = Script()
    store, errors = work_on(tmp_path, script, 1)
    assert script.words[0] == "PUT job-0/status"
    assert sorted(script.words[1:]) == ["POST events", *["POST pods"] * 3, "POST services"]
    (document,) = [body for method, _, body in script.asked if method == "PUT"]
    assert document["metadata"]["resourceVersion"] == "1", "the observed resourceVersion, not a newer one"
    assert document["spec"] == make_job(2)["spec"]
    assert errors == []
    assert store.states["Created"] == 1


@pytest.mark.parametrize("code", [404, 409])
def test_a_status_whose_job_has_changed_is_decided_anew(tmp_path: Path, code: int) -> None:
    changed = make_job(2)
    changed["metadata"].update(name="job-0", uid="uid-0", resourceVersion="50")
    changed["spec"]["runPolicy"]["suspend"] = True
    newer = {"GET msjobs/job-0": web.json_response(changed) if code == 409 else refuse(404, "NotFound")}
    script = Script({"PUT msjobs/job-0/status": refuse(code, "Conflict"), **newer})
    store, errors = work_on(tmp_path, script, 1)
    assert errors == []
    if code == 404:
        assert script.words[-1] == "GET job-0"
        assert store.states["Created"] == 0
        return
    final = [body for method, _, body in script.asked if method == "PUT"][-1]
    assert final["status"]["state"] == "Suspended"
    assert final["metadata"]["resourceVersion"] == "50"
    assert "POST pods" not in script.words


def test_what_is_gone_at_once_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody tells of it again: the watch has no news of what the answer said."""
    job = MSJob.from_dict({**make_job(2), "metadata": {"name": "job-0", "namespace": "team", "uid": "uid-0"}})
    service = build_service(job, 2222)
    service["spec"]["clusterIP"] = "10.96.0.1"
    stale = build_endpoint_slice(job, PodView("job-0-scheduler-0", "gone"), "10.244.0.5", 2222)
    store = Store()
    for version, (resource, document) in enumerate([(SERVICES, service), (ENDPOINT_SLICES, stale)], start=1):
        metadata = {**document["metadata"], "uid": resource.plural, "resourceVersion": str(version)}
        store.put(resource, {**document, "metadata": metadata})
    script = Script()
    _, errors = work_on(tmp_path, script, 1, store=store)
    assert errors == []
    words = [word for word in script.words if "status" not in word and "events" not in word]
    assert words == ["DELETE endpointslices/job-0-scheduler-0", *["POST pods"] * 3]


def test_refused_pods_are_reported_in_the_status(tmp_path: Path) -> None:
    script = Script({"POST pods": refuse(403, "Forbidden")})
    store, errors = work_on(tmp_path, script, 1)
    assert errors == ["cannot create pods 'job-0-scheduler-0' in namespace team: because of Forbidden"]
    statuses = [body["status"] for method, _, body in script.asked if method == "PUT"]
    assert statuses[0]["state"] == "Created"
    assert "because of Forbidden" in statuses[-1]["waiting"]
    assert store.states["Created"] == 1
