"""How soon a Service leads to its scheduler, when many gangs get their addresses at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from api_load import PODS_A_JOB, Client, Post, make_msjob, make_pods, make_service, post
from control_plane import DEFAULTS, ControlPlane, make_operator, settle

from kfp_mindspore.kube import ENDPOINT_SLICES, PODS, SERVICES
from kfp_mindspore.operator.resources import JOBS

_SECONDS = 900.0
_POLL_SECONDS = 0.2


async def measure_reach(plane: ControlPlane, client: Client, gangs: int, directory: Path) -> dict[str, float]:
    """Let the pods of many gangs run at once, and wait until each Service leads to its scheduler.

    Args:
        plane: Without an operator.
        client: Does what kubelets would.
        gangs: How many.
        directory: Where the operator's log goes.

    Returns:
        Seconds from the first pod that runs to the last Service: `ours` by the operator, `selectors` for the same pods
        and for Services with selectors by kube-controller-manager at its default limits.
    """
    found = {}
    names = [f"reach-{number:05d}" for number in range(gangs)]
    with plane.make_namespace() as namespace, make_operator(plane, directory) as operator:
        await client.create_all([post(JOBS, namespace, make_msjob(name)) for name in names])
        await client.wait_pods(namespace, gangs * PODS_A_JOB, _SECONDS)
        await settle(operator)
        found["ours"] = await _run_all(client, namespace, gangs)
        await client.clear(namespace)
    await plane.set_limits(DEFAULTS, client)
    with plane.make_namespace() as namespace:
        posts: list[Post] = []
        for name in names:
            pods = make_pods(name, namespace)
            posts += [post(PODS, namespace, pod) for pod in pods]
            posts.append(post(SERVICES, namespace, _select(make_service(name, namespace), pods)))
        await client.create_all(posts)
        # Slices without an address come first, and are no part of the question.
        await _wait_slices(client, namespace, gangs, led=False)
        await plane.wait_quiet()
        found["selectors"] = await _run_all(client, namespace, gangs)
        await client.clear(namespace)
    return found


async def _run_all(client: Client, namespace: str, gangs: int) -> float:
    loop = asyncio.get_running_loop()
    start = loop.time()
    await client.set_running(namespace)
    await _wait_slices(client, namespace, gangs, led=True)
    return round(loop.time() - start, 2)


async def _wait_slices(client: Client, namespace: str, count: int, *, led: bool) -> None:
    """Wait for so many EndpointSlices, or for so many with an address.

    Raises:
        TimeoutError: They do not come.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SECONDS
    while True:
        slices = await client.list(f"/apis/{ENDPOINT_SLICES.api_version}", namespace, ENDPOINT_SLICES.plural)
        found = sum(bool(item.get("endpoints")) or not led for item in slices)
        if found == count:
            return
        if loop.time() > deadline:
            raise TimeoutError(f"{namespace}: {found} of {count} EndpointSlices after {_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS)


def _select(service: dict[str, Any], pods: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a Service that leads to the pod of its name by a selector, ready or not."""
    (scheduler,) = [pod for pod in pods if pod["metadata"]["name"] == service["metadata"]["name"]]
    selector = {name: scheduler["metadata"]["labels"][name] for name in service["metadata"]["labels"]}
    return {**service, "spec": {**service["spec"], "selector": selector, "publishNotReadyAddresses": True}}
