"""What one request of each kind costs the control plane, in CPU: what a job's rate is made of."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from api_load import INDEXED_JOBS, Client, Post, make_indexed_job, make_msjob, make_pods, make_service, post
from control_plane import ControlPlane, take_cpu

from kfp_mindspore.kube import EVENTS, PODS, SERVICES
from kfp_mindspore.operator.resources import JOBS

_REST_SECONDS = 3.0
_JSON_PATCH = "application/json-patch+json"
_CREATED = {
    "type": "Created",
    "status": "True",
    "reason": "JobCreated",
    "message": "MSJob is created",
    "lastUpdateTime": "2026-01-01T00:00:00Z",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
_STATUS = {"state": "Created", "conditions": [_CREATED], "replicaStatuses": {}}
# Another state, as a write has it that the operator makes.
_RUNNING = {**_STATUS, "state": "Running"}


async def measure_prices(plane: ControlPlane, client: Client, count: int, rounds: int) -> list[dict[str, Any]]:
    """Send requests of one kind after the other, while nothing else happens.

    Args:
        plane: Without an operator.
        client: Sends them.
        count: How many of each kind a round.
        rounds: How often.

    Returns:
        A row a round and kind: milliseconds of CPU a request by process, with the consequences that follow at once.
    """
    rows = []
    for number in range(rounds):
        with plane.make_namespace() as namespace:
            for request, method, posts in _make_requests(namespace, count):
                if method == "PUT":
                    posts = await _read_replacements(client, namespace)
                await plane.wait_quiet()
                processes = plane.find_processes()
                resting = await _measure_rest(processes)
                before, start = take_cpu(processes), time.perf_counter()
                content_type = _JSON_PATCH if method == "PATCH" else "application/json"
                await client.send_all([(method, path, body, content_type) for path, body in posts])
                # What controllers make of it belongs to its price.
                await plane.wait_quiet()
                after, seconds = take_cpu(processes), time.perf_counter() - start
                spent = {name: after[name] - before[name] - resting[name] * seconds for name in processes}
                cost = {name: round(max(0.0, 1000 * value / count), 3) for name, value in spent.items()}
                rows.append({"round": number + 1, "request": request, "cpu_ms": cost})
            await client.clear(namespace)
    return rows


async def _measure_rest(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the share of a core that each process takes when nobody asks it for anything."""
    before, start = take_cpu(processes), time.perf_counter()
    await asyncio.sleep(_REST_SECONDS)
    after, seconds = take_cpu(processes), time.perf_counter() - start
    return {name: (after[name] - before[name]) / seconds for name in processes}


async def _read_replacements(client: Client, namespace: str) -> list[Post]:
    """Return what replaces the status of each job, made from what it is now."""
    jobs = await client.list(f"/apis/{JOBS.api_version}", namespace, JOBS.plural)
    return [
        Post(
            JOBS.get_path(namespace, job["metadata"]["name"], "status"),
            json.dumps({**job, "apiVersion": JOBS.api_version, "kind": JOBS.kind, "status": _RUNNING}).encode(),
        )
        for job in jobs
    ]


def _make_requests(namespace: str, count: int) -> list[tuple[str, str, Sequence[Post]]]:
    names = [f"price-{number:05d}" for number in range(count)]
    suspended = {"suspend": True}
    indexed = [make_indexed_job(name) for name in names]
    patch = json.dumps([{"op": "add", "path": "/status", "value": {**_STATUS, "restarts": 0}}]).encode()
    return [
        ("create pods", "POST", [post(PODS, namespace, make_pods(name, namespace)[0]) for name in names]),
        ("create services", "POST", [post(SERVICES, namespace, make_service(name, namespace)) for name in names]),
        ("create msjobs", "POST", [post(JOBS, namespace, make_msjob(name)) for name in names]),
        ("patch msjobs/status", "PATCH", [Post(JOBS.get_path(namespace, name, "status"), patch) for name in names]),
        ("update msjobs/status", "PUT", ()),
        ("create events", "POST", [post(EVENTS, namespace, _make_event(name, namespace)) for name in names]),
        (
            "create jobs (suspended)",
            "POST",
            [post(INDEXED_JOBS, namespace, {**job, "spec": {**job["spec"], **suspended}}) for job in indexed],
        ),
    ]


def _make_event(name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "namespace": namespace, "name": name},
        "type": "Normal",
        "reason": "JobCreated",
        "message": f"MSJob {name} is created",
        "source": {"component": "benchmark"},
        "count": 1,
    }
