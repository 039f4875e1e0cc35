"""The harness itself: a whole cluster with a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import BatchV1Api, CoreV1Api
from kubernetes.stream import stream

from kfp_mindspore.local.process import ProcessIdentity
from tests.cluster.infrastructure.api_server import Api
from tests.cluster.infrastructure.cluster import Cluster
from tests.cluster.infrastructure.images import PYTHON, ImageConfig, write_archive
from tests.cluster.infrastructure.machine import FIXED_PLACES, list_hierarchies
from tests.cluster.infrastructure.node import NODE
from tests.cluster.infrastructure.packages import PodPackages
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.infrastructure.resources import evict, set_schedulable
from tests.support.training.jobs import eventually

_ENDED = {"Succeeded", "Failed"}


def describe(name: str, script: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": PYTHON, "command": ["python", "-c", script], **spec.pop("container", {})}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": pod}


class PodFixture:
    """Makes pods in a namespace and waits for them."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.api = CoreV1Api(client)
        self.namespace = namespace

    def create(self, pod: dict[str, Any]) -> str:
        self.api.create_namespaced_pod(self.namespace, pod)
        return str(pod["metadata"]["name"])

    def read(self, name: str) -> Any:
        return self.api.read_namespaced_pod(name, self.namespace)

    def wait(self, name: str, *phases: str) -> Any:
        return eventually(lambda: pod if (pod := self.read(name)).status.phase in phases else None)

    def run(self, pod: dict[str, Any]) -> tuple[str, str]:
        name = self.create(pod)
        phase = self.wait(name, *_ENDED).status.phase
        return phase, self.api.read_namespaced_pod_log(name, self.namespace)


@pytest.fixture
def pod_factory(cluster: Api, namespace: str) -> Any:
    with cluster.client() as client:
        yield PodFixture(client, namespace)


def test_pod_log(pod_factory: PodFixture) -> None:
    assert pod_factory.run(describe("hello", "print('hello')")) == ("Succeeded", "hello\n")
    assert pod_factory.run(describe("broken", "raise SystemExit(3)"))[0] == "Failed"
    assert pod_factory.read("broken").status.container_statuses[0].state.terminated.exit_code == 3


def test_read_only_root_as_any_user(pod_factory: PodFixture) -> None:
    secure = {"runAsUser": 1000, "runAsNonRoot": True, "readOnlyRootFilesystem": True}
    script = "import os; print(os.getuid(), os.access('/usr', os.W_OK))"
    assert pod_factory.run(describe("user", script, container={"securityContext": secure})) == (
        "Succeeded",
        "1000 False\n",
    )


def test_dns_and_services(pod_factory: PodFixture, own_cluster: Cluster) -> None:
    server = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, s.ThreadingHTTPServer, port=8000)"
    pod_factory.create(describe("server", server, container={"workingDir": "/opt"}))
    ports = [{"port": 80, "targetPort": 8000}]
    body = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "server"}, "ports": ports}}
    address = pod_factory.api.create_namespaced_service(pod_factory.namespace, body).spec.cluster_ip
    pod_factory.wait("server", "Running")
    ask = """
import socket, sys, time, urllib.request
for attempt in range(100):
    try:
        print(urllib.request.urlopen("http://web", timeout=5).status, socket.gethostbyname(sys.argv[1]))
        break
    except OSError:
        time.sleep(0.2)
try:
    socket.gethostbyname("nowhere.example")
except socket.gaierror:
    print("unknown")
"""
    pod = describe("client", ask)
    pod["spec"]["containers"][0]["command"].append(f"web.{pod_factory.namespace}.svc.cluster.local")
    assert pod_factory.run(pod) == ("Succeeded", f"200 {address}\nunknown\n")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    assert opener.open(f"http://{address}/", timeout=30).status == 200


def test_no_egress(pod_factory: PodFixture, own_cluster: Cluster) -> None:
    script = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    phase, log = pod_factory.run(describe("outside", script))
    assert phase == "Failed"
    assert "OSError" in log or "Error" in log


def test_exec(pod_factory: PodFixture) -> None:
    pod_factory.create(describe("sleeper", "import time; time.sleep(600)"))
    pod_factory.wait("sleeper", "Running")
    connect = pod_factory.api.connect_get_namespaced_pod_exec
    assert "sleep" in stream(connect, "sleeper", pod_factory.namespace, command=["cat", "/proc/1/cmdline"], stdout=True)


def test_kill_process_of_pod(pod_factory: PodFixture, own_cluster: Cluster) -> None:
    pod_factory.create(describe("victim", "import time; time.sleep(600)"))
    pod_factory.wait("victim", "Running")
    first = own_cluster.find_processes(pod_factory.namespace, "victim")[0]
    assert first.send(signal.SIGKILL)
    assert pod_factory.wait("victim", "Failed").status.container_statuses[0].state.terminated.exit_code == 137


def test_oom_kill_is_reported(pod_factory: PodFixture) -> None:
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    pod_factory.create(describe("greedy", "bytes = bytearray(1 << 28); print(sum(bytes))", container=limits))
    assert pod_factory.wait("greedy", "Failed").status.container_statuses[0].state.terminated.reason == "OOMKilled"


def test_cordon_and_eviction(pod_factory: PodFixture, own_cluster: Cluster) -> None:
    pod_factory.create(describe("sleeper", "import time; time.sleep(600)"))
    pod_factory.wait("sleeper", "Running")
    set_schedulable(pod_factory.api.api_client, NODE, False)
    try:
        evict(pod_factory.api.api_client, pod_factory.namespace, "sleeper")
        eventually(lambda: not pod_factory.api.list_namespaced_pod(pod_factory.namespace).items)
        pod_factory.create(describe("waiting", "pass"))
        eventually(
            lambda: any(one.reason == "Unschedulable" for one in pod_factory.read("waiting").status.conditions or [])
        )
    finally:
        set_schedulable(pod_factory.api.api_client, NODE, True)
    pod_factory.wait("waiting", "Succeeded")


def test_host_volume(pod_factory: PodFixture, own_cluster: Cluster) -> None:
    path = own_cluster.make_volume(pod_factory.namespace)
    (path / "question").write_text("42")
    pod = describe(
        "writer",
        "open('/data/answer', 'w').write(open('/data/question').read())",
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}], "securityContext": {"runAsUser": 1000}},
        volumes=[{"name": "data", "hostPath": {"path": str(path)}}],
    )
    assert pod_factory.run(pod)[0] == "Succeeded"
    assert (path / "answer").read_text() == "42"


def test_pod_packages(pod_factory: PodFixture, pod_packages: PodPackages) -> None:
    script = "import kfp_mindspore, mindspore; print(kfp_mindspore.__file__, mindspore.__version__)"
    pod = describe("trainer", script, container={"securityContext": {"runAsUser": 1000}})
    pod["spec"] = pod_packages.add_to(pod["spec"])
    phase, log = pod_factory.run(pod)
    assert phase == "Succeeded", log
    assert log.splitlines()[-1].startswith("/opt/project/kfp_mindspore/__init__.py 2.9")


def test_node_pulls_from_registry(pod_factory: PodFixture, own_cluster: Cluster, registry: str, tmp_path: Path) -> None:
    image, root = f"{registry}/test/greeting:1", tmp_path / "root"
    root.mkdir()
    binaries = Path(own_cluster.daemons.get("kubelet").command[0]).parent
    (root / "coredns").write_bytes((binaries / "coredns").read_bytes())
    (root / "coredns").chmod(0o755)
    write_archive(image, root, tmp_path / "image.tar", ImageConfig(entrypoint=["/coredns", "-version"]))
    own_cluster.import_image(tmp_path / "image.tar")
    own_cluster.push_image(image)
    own_cluster.remove_image(image)
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": image, "imagePullPolicy": "Always"}]}
    phase, log = pod_factory.run({"metadata": {"name": "pulled"}, "spec": pod})
    assert phase == "Succeeded"
    assert "CoreDNS" in log


def test_pods_survive_api_server_restart(pod_factory: PodFixture, own_cluster: Cluster) -> None:
    pod_factory.create(describe("sleeper", "import time; time.sleep(600)"))
    before = pod_factory.wait("sleeper", "Running").metadata.uid
    own_cluster.restart_api_server()
    after = eventually(lambda: _try(lambda: pod_factory.read("sleeper")))
    assert (after.metadata.uid, after.status.phase) == (before, "Running")


def test_jobs_run_concurrently(pod_factory: PodFixture) -> None:
    template = {"spec": describe("any", "print(1)")["spec"]}
    spec = {"completions": 5, "parallelism": 5, "completionMode": "Indexed", "template": template}
    batch = BatchV1Api(pod_factory.api.api_client)
    batch.create_namespaced_job(pod_factory.namespace, {"metadata": {"name": "five"}, "spec": spec})
    eventually(lambda: batch.read_namespaced_job_status("five", pod_factory.namespace).status.succeeded == 5)


def test_fixed_paths_are_in_directory_of_cluster(own_cluster: Cluster) -> None:
    for place in FIXED_PLACES:
        source = own_cluster.namespaces.call("findmnt", "--noheadings", "--output", "SOURCE", place)
        assert own_cluster.directory.name in source


def test_killed_owner_leaves_nothing(own_cluster: Cluster) -> None:
    script = "import time; from tests.cluster.infrastructure.cluster import OwnedCluster\n"
    script += "one = OwnedCluster(); print(one.directory, one.network.number, flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    directory, number = owner.stdout.readline().split()
    name = Path(directory).name
    processes = [ProcessIdentity.of(pid) for pid in _find_processes(directory)]
    assert len(processes) > 8

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    # Two processes wait for the end of the lease.
    eventually(lambda: not any(process.is_alive() for process in processes if process))
    eventually(lambda: not Path(f"/sys/class/net/kfpms{number}").exists())
    eventually(lambda: not Path(directory).exists())
    assert not [path for path in list_hierarchies() if (path / f"kfp-mindspore-{name}").exists()]
    assert name not in Path("/proc/self/mounts").read_text()
    assert own_cluster.is_ready()


def _try(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except OSError:
        return None


def _find_processes(word: str) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word in (process / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found
