"""The operator against a real API server without nodes: the tests say what becomes of pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kfp_mindspore.kube import SERVICES, Cluster
from kfp_mindspore.msjob.crd import build_crd
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.support.operators import Jobs, OperatorProcess


@pytest.fixture(scope="module")
def jobs(api_server: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    """Return a namespace with an operator of its own."""
    Cluster(api_server.kubeconfig).apply(build_crd())
    log = tmp_path_factory.mktemp("operator") / "log"
    with api_server.make_namespace() as namespace, OperatorProcess(api_server.kubeconfig, log, "-n", namespace):
        yield Jobs(api_server.kubeconfig, namespace)


def test_a_job_comes_to_run_and_to_its_end(jobs: Jobs) -> None:
    jobs.create("plain", workers=2)
    pods = jobs.wait_pods("plain", lambda pods: len(pods) == 3)
    (service,) = jobs.services("plain")
    environment = {item["name"]: item for item in pods["plain-worker-1"]["spec"]["containers"][0]["env"]}
    assert environment["MS_NODE_ID"]["value"] == "1"
    assert environment["MS_SCHED_HOST"]["value"].startswith("10.0.")
    for pod in pods:
        jobs.set_running(pod)
    running = jobs.wait("plain", "Running")
    assert running["status"]["workers"] == "2/2"
    jobs.end("plain-worker-0", 0)
    done = jobs.wait("plain", "Succeeded")
    assert done["status"]["restarts"] == 0
    # cleanPodPolicy is Running by default: what runs is ended, what has ended stays for its log.
    pods = jobs.wait_pods("plain", lambda pods: "deletionTimestamp" in pods["plain-worker-1"]["metadata"])
    assert "deletionTimestamp" not in pods["plain-worker-0"]["metadata"]
    jobs.wait_gone(service, SERVICES)
