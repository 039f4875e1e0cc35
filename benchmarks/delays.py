"""From an event to what a controller makes of it, as a client of the API server sees both."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from api_load import INDEXED_JOB_LABEL, INDEXED_JOBS, PODS_A_JOB, Client, make_indexed_job, make_msjob, post
from control_plane import ControlPlane

from kfp_mindspore.kube import PODS, Resource
from kfp_mindspore.msjob.names import JOB_LABEL
from kfp_mindspore.operator.resources import JOBS

_SECONDS = 120.0
# At its default limits the Job controller makes some four jobs of three pods a second: nobody has to queue.
_PER_SECOND = 2.0


@dataclass(frozen=True)
class Kind:
    """Jobs whose delays are measured.

    Attributes:
        resource: The kind.
        make: From a name to a job.
        label: The label of its pods that names the job.
        runs: Whether to let pods run, and wait until the job says so.
    """

    resource: Resource
    make: Callable[[str], dict[str, Any]]
    label: str
    runs: bool


OURS = Kind(JOBS, make_msjob, JOB_LABEL, runs=True)
INDEXED = Kind(INDEXED_JOBS, make_indexed_job, INDEXED_JOB_LABEL, runs=False)


@dataclass
class _Job:
    posted: float = 0.0
    pods: dict[str, float] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    said: float = 0.0
    running: float = 0.0
    is_running: asyncio.Event = field(default_factory=asyncio.Event)


async def measure_delays(client: Client, kind: Kind, count: int, plane: ControlPlane) -> dict[str, list[float]]:
    """Create jobs one after the other, in a namespace of their own, and watch what becomes of them.

    Returns:
        Milliseconds, a value a job: `created` from the answer to its creation to the last of its pods, `running` from
        the answer to the last pod's change to the job's own.
    """
    with plane.make_namespace() as namespace:
        delays = await _measure(client, namespace, kind, count)
        await client.clear(namespace)
    return delays


async def _measure(client: Client, namespace: str, kind: Kind, count: int) -> dict[str, list[float]]:
    jobs = {f"delay-{number:05d}": _Job() for number in range(count)}
    watches = [asyncio.create_task(_watch_pods(client, namespace, kind, jobs))]
    if kind.runs:
        watches.append(asyncio.create_task(_watch_jobs(client, namespace, kind, jobs)))
    try:
        # A watch has begun when its first event has come.
        await _probe(client, namespace, kind, jobs)
        following = []
        start = time.perf_counter()
        for number, (name, job) in enumerate(list(jobs.items())):
            await asyncio.sleep(max(0.0, start + number / _PER_SECOND - time.perf_counter()))
            following.append(asyncio.create_task(_follow(client, namespace, kind, name, job)))
        await asyncio.wait_for(asyncio.gather(*following), count / _PER_SECOND + _SECONDS)
    finally:
        for task in watches:
            task.cancel()
        for task in watches:
            with contextlib.suppress(asyncio.CancelledError):
                await task
    found = [job for name, job in jobs.items() if name.startswith("delay-")]
    delays = {"created": [1000 * max(0.0, max(job.pods.values()) - job.posted) for job in found]}
    if kind.runs:
        delays["running"] = [1000 * max(0.0, job.running - job.said) for job in found]
    return delays


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile."""
    return {"p50": statistics.median(values), "p99": statistics.quantiles(values, n=100, method="inclusive")[98]}


async def _probe(client: Client, namespace: str, kind: Kind, jobs: dict[str, _Job]) -> None:
    for number in range(1, 100):
        name = f"probe-{number:05d}"
        probe = jobs[name] = _Job()
        await client.create_all([post(kind.resource, namespace, kind.make(name))])
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(probe.complete.wait(), 5)
            break
    else:
        raise TimeoutError(f"no {kind.resource.kind} of {namespace} gets its pods")
    for name in [name for name in jobs if name.startswith("probe-")]:
        del jobs[name]


async def _follow(client: Client, namespace: str, kind: Kind, name: str, job: _Job) -> None:
    await client.create_all([post(kind.resource, namespace, kind.make(name))])
    job.posted = time.perf_counter()
    await job.complete.wait()
    if not kind.runs:
        return
    for pod in sorted(job.pods):
        await client.set_pod_running(namespace, pod)
    job.said = time.perf_counter()
    await job.is_running.wait()


async def _watch_pods(client: Client, namespace: str, kind: Kind, jobs: dict[str, _Job]) -> None:
    async for event, seen in client.watch(PODS.get_path(namespace)):
        metadata = event["object"]["metadata"]
        job = jobs.get((metadata.get("labels") or {}).get(kind.label) or "")
        if event["type"] == "ADDED" and job is not None:
            job.pods[metadata["name"]] = seen
            if len(job.pods) == PODS_A_JOB:
                job.complete.set()


async def _watch_jobs(client: Client, namespace: str, kind: Kind, jobs: dict[str, _Job]) -> None:
    async for event, seen in client.watch(kind.resource.get_path(namespace)):
        document = event["object"]
        job = jobs.get(document["metadata"]["name"])
        conditions = (document.get("status") or {}).get("conditions") or []
        if (
            job is not None
            and not job.is_running.is_set()
            and any(item["type"] == "Running" and item["status"] == "True" for item in conditions)
        ):
            job.running = seen
            job.is_running.set()
