"""What is asked of an API server: the objects of a job, and a client that creates many at once.

The bodies are made before the clock starts, and answers are read but not parsed, so that the client takes little of the
machine that it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from kfp_mindspore.kube import Resource

PODS_A_JOB = 3
CONNECTIONS = 32
INDEXED_JOBS = Resource("batch", "v1", "jobs", "Job")
INDEXED_JOB_LABEL = "batch.kubernetes.io/job-name"
_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 5.0
# Of a network that is for documentation only.
_POD_IP = "198.51.100.7"
_TEMPLATE = {
    "spec": {
        "containers": [
            {
                "name": "mindspore",
                "image": "kfp-mindspore.invalid/none",
                "command": ["python", "train.py", "--epochs", "10"],
                "env": [{"name": "GLOG_v", "value": "3"}],
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
            }
        ],
    }
}


class Post(NamedTuple):
    """An object to create.

    Attributes:
        path: Of its collection.
        body: Its JSON.
    """

    path: str
    body: bytes


def make_msjob(name: str) -> dict[str, Any]:
    """Return an MSJob of one scheduler and two workers."""
    member = {"restartPolicy": "OnFailure", "template": _TEMPLATE}
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"backoffLimit": 3},
            "msReplicaSpecs": {"Scheduler": {**member, "replicas": 1}, "Worker": {**member, "replicas": 2}},
        },
    }


def make_indexed_job(name: str) -> dict[str, Any]:
    """Return an Indexed Job of three pods from the same template."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": PODS_A_JOB,
            "parallelism": PODS_A_JOB,
            "completionMode": "Indexed",
            "backoffLimit": 3,
            "template": {"spec": {**_TEMPLATE["spec"], "restartPolicy": "Never"}},
        },
    }


def make_pods(name: str, namespace: str) -> list[dict[str, Any]]:
    """Return the pods that the operator makes of a job, without an owner."""
    from kfp_mindspore.operator.options import Options
    from kfp_mindspore.operator.pods import build_pod, lay_out

    job, port = _read_job(name, namespace)
    members = lay_out(job, "10.0.255.255", port)
    pods = [build_pod(job, member, host="10.0.255.255", attempt=0, restarts=0, options=Options()) for member in members]
    assert len(pods) == PODS_A_JOB, f"{name} has {len(pods)} pods"
    return [_orphan(pod) for pod in pods]


def make_service(name: str, namespace: str) -> dict[str, Any]:
    """Return the Service that the operator makes of a job, without an owner."""
    from kfp_mindspore.operator.services import build_service

    job, port = _read_job(name, namespace)
    return _orphan(build_service(job, port))


def post(resource: Resource, namespace: str, document: dict[str, Any]) -> Post:
    """Return an object as it is sent."""
    return Post(resource.get_path(namespace), json.dumps(document, separators=(",", ":")).encode())


class Client:
    """A pool of connections; an asynchronous context manager.

    Args:
        kubeconfig: The administrator's, whose requests no fairness rule delays.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    async def __aenter__(self) -> Client:
        import aiohttp

        from kfp_mindspore.kube.config import load_config

        config = load_config(self._kubeconfig)
        self._session = aiohttp.ClientSession(
            config.server,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS + 8, ssl=config.create_ssl_context()),
            timeout=aiohttp.ClientTimeout(total=600),
            headers={"User-Agent": "kfp-mindspore-benchmark"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        **query: str,
    ) -> bytes:
        """Send a request and return the answer's body.

        Raises:
            RuntimeError: The API server refuses.
        """
        headers = {"Content-Type": content_type} if body is not None else {}
        async with self._session.request(method, path, data=body, params=query, headers=headers) as response:
            content = await response.read()
            if response.status >= 300 and not (method in ("DELETE", "PATCH") and response.status == 404):
                raise RuntimeError(f"{method} {path}: HTTP {response.status}: {content.decode(errors='replace')[:500]}")
            return content

    async def create_all(self, posts: Sequence[Post]) -> float:
        """Create objects, as many at once as there are connections; return the seconds that it took."""
        start = time.perf_counter()
        await self.send_all([("POST", path, body, "application/json") for path, body in posts])
        return time.perf_counter() - start

    async def set_running(self, namespace: str) -> int:
        """Say of every pod of a namespace that is pending that it runs, as kubelets would; return how many."""
        names = [
            item["metadata"]["name"]
            for item in await self.list("/api/v1", namespace, "pods", fieldSelector="status.phase=Pending")
        ]
        await self.send_all([_patch_running(namespace, name) for name in names])
        return len(names)

    async def set_pod_running(self, namespace: str, name: str) -> None:
        """Say of one pod that it runs."""
        await self.send_all([_patch_running(namespace, name)])

    async def list(self, version: str, namespace: str, plural: str, **query: str) -> list[dict[str, Any]]:
        """Return a namespace's objects of a kind, page by page."""
        items: list[dict[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            path = f"{version}/namespaces/{namespace}/{plural}"
            page = json.loads(await self.send("GET", path, limit="500", **token, **query))
            items += page.get("items") or []
            if not (found := page["metadata"].get("continue")):
                return items
            token = {"continue": found}

    async def count_pods(self, namespace: str) -> int:
        """Return how many pods a namespace has, without reading them."""
        page = json.loads(await self.send("GET", f"/api/v1/namespaces/{namespace}/pods", limit="1"))
        return len(page.get("items") or []) + int(page["metadata"].get("remainingItemCount") or 0)

    async def wait_pods(self, namespace: str, count: int, seconds: float) -> None:
        """Wait until a namespace has so many pods.

        It asks the less often the more are missing: each answer costs the API server a look at all pods.

        Raises:
            TimeoutError: It does not get them.
        """
        start = time.monotonic()
        while (found := await self.count_pods(namespace)) != count:
            passed = time.monotonic() - start
            if passed > seconds:
                raise TimeoutError(f"{namespace} has {found} pods instead of {count} after {seconds:g} s")
            left = passed * (count - found) / found if 0 < found < count else 0.0
            await asyncio.sleep(min(max(_POLL_SECONDS, left / 2), _LONGEST_POLL_SECONDS))

    async def watch(self, path: str) -> AsyncIterator[tuple[dict[str, Any], float]]:
        """Yield the events of a collection from now on, each with the time at which it was read."""
        import aiohttp

        limits = aiohttp.ClientTimeout(total=None)
        async with self._session.get(path, params={"watch": "1"}, timeout=limits) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                seen = time.perf_counter()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line), seen

    async def clear(self, namespace: str, seconds: float = 900) -> None:
        """Delete all jobs, pods, Services and events of a namespace, jobs first, and wait until no pod is left."""
        deadline = time.monotonic() + seconds
        for version, plural in (("/apis/mindspore.gitee.com/v1", "msjobs"), ("/apis/batch/v1", "jobs")):
            path = f"{version}/namespaces/{namespace}/{plural}"
            await self._delete_collection(path, deadline, propagationPolicy="Background")
        # The Job controller keeps its pods until it has counted them, at its own pace.
        held = [
            item["metadata"]["name"]
            for item in await self.list("/api/v1", namespace, "pods", labelSelector=INDEXED_JOB_LABEL)
            if item["metadata"].get("finalizers")
        ]
        free = json.dumps({"metadata": {"finalizers": None}}).encode()
        path = f"/api/v1/namespaces/{namespace}"
        await self.send_all([("PATCH", f"{path}/pods/{name}", free, "application/merge-patch+json") for name in held])
        for plural in ("pods", "services", "events"):
            await self._delete_collection(f"{path}/{plural}", deadline, gracePeriodSeconds="0")
        await self.wait_pods(namespace, 0, seconds)

    async def _delete_collection(self, path: str, deadline: float, **query: str) -> None:
        """Delete a collection, and ask again when that takes longer than the API server gives a request."""
        import aiohttp

        while True:
            try:
                await self.send("DELETE", path, **query)
                return
            except (aiohttp.ClientError, RuntimeError) as error:
                if time.monotonic() > deadline or (isinstance(error, RuntimeError) and "HTTP 504" not in str(error)):
                    raise

    async def send_all(self, requests: Iterable[tuple[str, str, bytes, str]]) -> None:
        """Send requests (method, path, body, content type), as many at once as there are connections."""
        waiting = iter(requests)

        async def work() -> None:
            for method, path, body, content_type in waiting:
                await self.send(method, path, body, content_type=content_type)

        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))


def _patch_running(namespace: str, name: str) -> tuple[str, str, bytes, str]:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    container = {
        "name": "mindspore",
        "image": "kfp-mindspore.invalid/none",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": stamp}},
    }
    body = json.dumps({"status": {"phase": "Running", "podIP": _POD_IP, "containerStatuses": [container]}}).encode()
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    return "PATCH", path, body, "application/strategic-merge-patch+json"


def _read_job(name: str, namespace: str) -> tuple[Any, int]:
    from kfp_mindspore.msjob.topology import get_scheduler_port
    from kfp_mindspore.msjob.types import MSJob

    document = make_msjob(name)
    document["metadata"]["namespace"] = namespace
    job = MSJob.from_dict(document)
    return job, get_scheduler_port(job)


def _orphan(document: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in document["metadata"].items() if key != "ownerReferences"}
    return {**document, "metadata": metadata}
