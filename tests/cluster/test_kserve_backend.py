"""KServeBackend on a real API server, with a simulated KServe: server-side apply, rollouts and their failures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import pytest

from kfp_mindspore.errors import ProcessFailedError, UserError, WaitTimeoutError
from kfp_mindspore.inference import InferenceClient, KServeBackend, Service
from kfp_mindspore.inference.backends.kserve import GRAPHS, SERVICES
from kfp_mindspore.inference.backends.rollout import DEPLOYMENTS, list_pods
from kfp_mindspore.inference.graph import build_graph, deploy_graph
from kfp_mindspore.inference.manifest import MANAGER_LABEL, SERVICE_ANNOTATION
from kfp_mindspore.kube.cluster import Cluster
from tests.cluster.infrastructure.api_server import Api
from tests.support.kube.simulated_kserve import SimulatedKServe, install_definitions
from tests.support.serving.serving_cases import (
    CASES,
    FIRST,
    NAME,
    SECOND,
    ServingEnvironment,
    failing_new_version_leaves_the_old_one_serving,
    new_version_replaces_the_old_one,
)


class SimulatedEnvironment(ServingEnvironment):
    """An API server with a simulated KServe."""

    failure = r"pod digits-(canary-)?predictor-\S+: container kserve-container ended with exit code 2"
    wait_seconds = 60

    def __init__(self, kserve: SimulatedKServe, kubeconfig) -> None:
        backend = KServeBackend(kubeconfig=kubeconfig, unschedulable_seconds=0.5)
        self.client = InferenceClient(backend, kserve.namespace)
        self.kserve = kserve
        self.cluster: Cluster = backend.cluster

    def locate(self, model: str) -> str:
        return f"s3://models/{model}/"

    def identify(self, url: str) -> str:
        host = url.partition("://")[2].partition(".")[0]
        if host.endswith("-traffic"):
            graph = self.cluster.get(GRAPHS, host, self.client.namespace)
            steps = graph["spec"]["nodes"]["v2"]["steps"]
            (step,) = random.choices(steps, [entry["weight"] for entry in steps])
            return self.identify(step["serviceUrl"])
        # During a rollout two pods may be ready, in Knative mode also the old version's, which get no requests.
        pods = [pod for pod in list_pods(self.cluster, host, self.client.namespace) if pod.is_ready]
        if self.kserve.knative:
            predictor = self.get(name=host.removesuffix("-predictor"))["status"]["components"]["predictor"]
            pods = [pod for pod in pods if pod.name.startswith(f"{predictor['latestReadyRevision']}-")]
        (directory,) = {json.loads(pod.annotations[SERVICE_ANNOTATION])["model_dir"] for pod in pods}
        return directory.split("/")[3]

    def get(self, resource=SERVICES, name: str = NAME):
        return self.cluster.get(resource, name, self.client.namespace)


@pytest.fixture
def world(api_server: Api, api_namespace: str) -> Iterator[SimulatedEnvironment]:
    install_definitions(Cluster(api_server.kubeconfig))
    with SimulatedKServe(api_server.kubeconfig, api_namespace).run() as kserve:
        yield SimulatedEnvironment(kserve, api_server.kubeconfig)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(case: Callable[[ServingEnvironment], None], world: SimulatedEnvironment) -> None:
    case(world)


@pytest.mark.parametrize(
    "case", [new_version_replaces_the_old_one, failing_new_version_leaves_the_old_one_serving], ids=lambda c: c.__name__
)
def test_rollout_in_knative_mode(case: Callable[[ServingEnvironment], None], world: SimulatedEnvironment) -> None:
    world.kserve.knative = True
    world.failure = "container kserve-container ended with exit code 2"
    case(world)


def test_retried_deployment_is_no_rollout(world: SimulatedEnvironment) -> None:
    world.deploy(FIRST)
    status = world.deploy(SECOND, run="run-1")
    before = world.get(DEPLOYMENTS, "digits-predictor")
    assert world.deploy(SECOND, run="run-2") == status
    assert world.get(DEPLOYMENTS, "digits-predictor")["metadata"]["generation"] == before["metadata"]["generation"]
    assert world.deploy(SECOND, digest="sha256:2").version == 3


def test_restored_version_keeps_its_pods(world: SimulatedEnvironment) -> None:
    world.deploy(FIRST)
    world.deploy(SECOND)
    good = world.get()
    pods = {pod.uid for pod in list_pods(world.cluster, "digits-predictor", world.client.namespace)}
    with pytest.raises(ProcessFailedError, match=r"The version before serves on\."):
        world.deploy("broken")
    now = world.get()
    assert (now["spec"], now["metadata"]["annotations"]) == (good["spec"], good["metadata"]["annotations"])
    found = list_pods(world.cluster, "digits-predictor", world.client.namespace)
    assert {pod.uid for pod in found if pod.is_ready} == pods


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("no-image", "container kserve-container: ErrImagePull: no such host"),
        ("no-node", r"Unschedulable: 0/1 nodes"),
    ],
)
def test_pod_that_cannot_start_fails_rollout(world: SimulatedEnvironment, model: str, reason: str) -> None:
    with pytest.raises(ProcessFailedError, match=rf"service digits: pod digits-predictor-\S+: {reason}"):
        world.deploy(model)


def test_missing_runtime_is_reported(world: SimulatedEnvironment) -> None:
    world.kserve.has_runtime = False
    with pytest.raises(ProcessFailedError, match="service digits: NoSupportingRuntime: No runtime found"):
        world.deploy(FIRST)
    assert world.client.list() == []


def test_refused_pods_are_reported(world: SimulatedEnvironment, api_server: Api) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
    world.cluster.apply({**quota, "metadata": {"name": "none", "namespace": world.client.namespace}})
    with pytest.raises(ProcessFailedError, match="exceeded quota: none"):
        world.deploy(FIRST)


def test_router_that_cannot_start_ends_canary(world: SimulatedEnvironment) -> None:
    stable = world.deploy(FIRST)
    world.kserve.starts_routers = False
    with pytest.raises(ProcessFailedError, match="router of canary of service digits: pod digits-traffic-"):
        world.deploy(SECOND, canary=10)
    assert world.client.get(NAME) == stable
    assert world.cluster.list(GRAPHS, world.client.namespace) == []


def test_version_left_by_killed_client_is_replaced_by_one_before(world: SimulatedEnvironment) -> None:
    world.deploy(FIRST)
    backend = world.client.backend
    assert isinstance(backend, KServeBackend)
    with pytest.MonkeyPatch.context() as patch:
        # A client that dies while it waits restores nothing.
        patch.setattr(backend, "_restore", lambda *arguments, **options: "")
        with pytest.raises(ProcessFailedError):
            world.deploy("broken")
    assert "broken" in world.get()["metadata"]["annotations"][SERVICE_ANNOTATION]
    with pytest.raises(ProcessFailedError):
        world.deploy("broken")
    status = world.client.wait_ready(NAME, timeout=30)
    assert (status.model, world.identify(status.url)) == (world.locate(FIRST), FIRST)


def test_object_of_another_manager_is_refused(world: SimulatedEnvironment) -> None:
    world.deploy(FIRST)
    namespace = world.client.namespace
    world.cluster.patch(SERVICES, NAME, namespace, {"metadata": {"labels": {MANAGER_LABEL: None}}})
    with pytest.raises(UserError, match="is not of kfp-mindspore") as caught:
        world.deploy(SECOND)
    assert "kubectl label" in caught.value.hint


def test_timeout_names_pods(world: SimulatedEnvironment) -> None:
    backend = world.client.backend
    assert isinstance(backend, KServeBackend)
    backend.unschedulable_seconds = 1000
    world.wait_seconds = 1
    with pytest.raises(WaitTimeoutError, match=r"not ready within 1 s: pod digits-predictor-\S+ is Pending"):
        world.deploy("no-node")


def test_graph_over_two_services_is_deployed_once(world: SimulatedEnvironment) -> None:
    services = [
        world.client.deploy(Service(name, world.locate(name), namespace=world.client.namespace))
        for name in ("one", "two")
    ]
    document = build_graph("both", services, router="Splitter", weights=(90, 10))
    url = deploy_graph(world.cluster, document, wait_seconds=world.wait_seconds)
    assert "both" in url
    before = world.get(GRAPHS, "both")
    assert [step["serviceUrl"] for step in before["spec"]["nodes"]["v1"]["steps"]] == [
        f"{service.url}/v1/models/{service.name}:predict" for service in services
    ]
    assert deploy_graph(world.cluster, document, wait_seconds=world.wait_seconds) == url
    assert world.get(GRAPHS, "both")["metadata"]["generation"] == before["metadata"]["generation"]
