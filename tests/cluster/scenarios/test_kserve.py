"""Services under KServe's own controller, webhooks and router."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import yaml

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.model_image import push_model
from kfp_mindspore.inference.backends.kserve import SERVICES, STORAGE_CONTAINERS
from kfp_mindspore.inference.backends.rollout import get_pod_failure
from kfp_mindspore.inference.rest import predict_v1
from kfp_mindspore.inference.smoke import run_smoke_test
from kfp_mindspore.kube.errors import ForbiddenError
from kfp_mindspore.kube.pods import read_pod
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.mindir.monitoring.log import Exchange, read_log
from tests.cluster.builder_images import push_busybox
from tests.cluster.infrastructure.cluster import resolve
from tests.cluster.infrastructure.node import NODE
from tests.support.controllers.keda_cluster import run_keda
from tests.support.controllers.kserve_cluster import KServe, resolve_services, wait_replicas
from tests.support.controllers.metrics_server_cluster import run_metrics_server
from tests.support.kube.operators import wait_for
from tests.support.remote.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore
from tests.support.remote.registries import start_registry, write_login
from tests.support.serving.kserve_environment import READY_SECONDS, KServeEnvironment, read_outputs
from tests.support.serving.serving_cases import CASES, FIRST, NAME, SECOND, ServingEnvironment
from tests.support.serving.serving_client import messages

# Targets are 10 s from the failure of a pod and 5 s for a rollback.
REPORT_SECONDS, ROLLBACK_SECONDS = 10.0, 5 * 5.0
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
POLICY = Path(__file__).parents[3] / "examples" / "kserve" / "restricted" / "router-policy.yaml"
ROUTER_LABEL = "serving.kserve.io/inferencegraph"
# Of docs/deployment.md.
SECURITY_CONTEXT = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def world(kserve: KServe, bundles: dict[str, Path]) -> Iterator[KServeEnvironment]:
    with kserve.make_namespace() as namespace:
        yield KServeEnvironment(kserve, namespace, bundles)


@pytest.fixture
def restricted_world(kserve: KServe, bundles: dict[str, Path]) -> Iterator[KServeEnvironment]:
    with kserve.make_namespace(restricted=True) as namespace:
        yield KServeEnvironment(kserve, namespace, bundles)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(case: Callable[[ServingEnvironment], None], world: KServeEnvironment) -> None:
    case(world)


def test_runtime_is_selected_for_format(world: KServeEnvironment) -> None:
    status = world.deploy(FIRST)
    document = world.kserve.api.get(SERVICES, NAME, world.client.namespace)
    assert document["status"]["clusterServingRuntimeName"] == "kfp-mindspore-server"
    assert document["status"]["deploymentMode"] == "Standard"
    with resolve_services(world.kserve.cluster):
        assert run_smoke_test(status.url, NAME, world.bundles[FIRST]).max_abs_diff < 1e-5


def test_failing_update_and_rollback_take_seconds(world: KServeEnvironment) -> None:
    world.deploy(FIRST)
    with ThreadPoolExecutor(1) as executor:
        deployment = executor.submit(world.deploy, "broken")
        failed = wait_for_failed_pod(world)
        error = deployment.exception(READY_SECONDS)
        reported = time.monotonic()
    assert isinstance(error, ProcessFailedError)
    assert reported - failed < REPORT_SECONDS
    assert any("model.mindir" in line for line in error.log)
    assert world.identify(world.client.get(NAME).url) == FIRST
    world.deploy(SECOND, canary=10)
    start = time.monotonic()
    world.client.rollback(NAME)
    assert time.monotonic() - start < ROLLBACK_SECONDS
    assert world.identify(world.client.get(NAME).url) == FIRST


def test_update_loses_no_request(world: KServeEnvironment) -> None:
    url = world.deploy(FIRST).url
    models: list[str] = []
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            models.append(world.identify(url))

    with ThreadPoolExecutor(1) as executor:
        client = executor.submit(send)
        try:
            world.deploy(SECOND)
            # The pod of the first version terminates meanwhile.
            wait_for(lambda: client.done() or models[-20:] == [SECOND] * 20, lambda: f"{models[-20:]} respond")
        finally:
            is_over.set()
        client.result()
    assert set(models) == {FIRST, SECOND}


def test_named_port_serves_grpc(world: KServeEnvironment) -> None:
    status = world.deploy(FIRST, grpc=True)
    host, _, port = status.grpc_url.rpartition(":")
    sample = world.read_sample()
    (spec,) = ModelBundle.open(world.bundles[FIRST]).signature.inputs
    request = messages.ModelInferRequest(model_name=NAME)
    request.inputs.add(name=spec.name, datatype="FP32", shape=sample.shape)
    request.raw_input_contents.append(sample.tobytes())
    (address,) = resolve(world.kserve.cluster.network.dns, host)
    with grpc.insecure_channel(f"{address}:{port}") as channel:
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        response = infer(request, timeout=60)
    assert world.recognise(np.frombuffer(response.raw_output_contents[0], np.float32)) == FIRST
    assert world.identify(status.url) == FIRST


def test_storage_initializer_downloads_bundle(world: KServeEnvironment, store: ObjectStore) -> None:
    world.kserve.add_store(world.client.namespace, store)
    world.store = f"s3://{BUCKET}"
    status = world.deploy(f"{FIRST}/", service_account="models")
    assert world.identify(status.url) == FIRST
    with pytest.raises(ProcessFailedError, match="storage-initializer"):
        world.deploy("absent/", service_account="models")
    assert world.identify(status.url) == FIRST


@pytest.mark.parametrize("options", [{}, {"hash": ["image"], "writer": "server"}], ids=["agent", "server"])
def test_requests_are_logged_into_a_store(
    world: KServeEnvironment, store: ObjectStore, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace, count = world.client.namespace, 5
    world.kserve.add_store(namespace, store)
    logger = {"url": f"s3://{BUCKET}/{namespace}", **options}
    status = world.deploy(FIRST, service_account="models", env_from=["secret/store"], logger=logger)
    for _ in range(count):
        assert world.identify(status.url) == FIRST
    variables = {"ENDPOINT_URL": store.url, "ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY}
    for name, value in variables.items():
        monkeypatch.setenv(f"AWS_{name}", value)

    def list_logged() -> list[Exchange]:
        if not store.list(f"{namespace}/"):
            return []
        exchanges = read_log(logger["url"], NAME).exchanges
        return [one for one in exchanges if one.request is not None and one.response is not None]

    wait_for(lambda: len(list_logged()) >= count, lambda: f"{store.list(namespace)} are logged")
    logged = list_logged()
    assert len(logged) == count
    sample, prediction = world.read_sample()[0], read_outputs(world.bundles[FIRST])[0]
    for exchange in logged:
        ((image,), (output,)) = (next(iter(columns.values())) for columns in (exchange.request, exchange.response))
        assert np.allclose(output, prediction, atol=1e-4)
        assert isinstance(image, str) if options else np.array_equal(image, sample)


def test_sidecar_provides_model_of_registry(world: KServeEnvironment, registry: str, tmp_path: Path) -> None:
    base = push_busybox(registry, tmp_path)
    config = RegistryConfig(insecure=(registry,))
    for name in (FIRST, SECOND):
        push_model(world.bundles[name], f"{registry}/models/{name}:1", config, base=base)
    world.store = f"oci://{registry}/models"
    assert world.identify(world.deploy(f"{FIRST}:1").url) == FIRST
    assert world.identify(world.deploy(f"{SECOND}:1").url) == SECOND


def test_restricted_namespace(restricted_world: KServeEnvironment, store: ObjectStore) -> None:
    world = restricted_world
    status = world.deploy(FIRST)
    assert world.identify(status.url) == FIRST
    # KServe's router has no seccompProfile.
    with pytest.raises(ProcessFailedError, match=r"router of canary of service digits: .*seccompProfile"):
        world.deploy(SECOND, canary=10)
    assert world.client.get(NAME).canary is None
    # KServe's storage initializer has no securityContext; the server downloads by itself.
    world.store = f"s3://{BUCKET}"
    with pytest.raises(ProcessFailedError, match=r'violates PodSecurity .*"storage-initializer"'):
        world.deploy(f"{SECOND}/")
    world.kserve.add_store(world.client.namespace, store)
    status = world.deploy(f"{SECOND}/", download="server", storage_secret="store")
    assert world.identify(status.url) == SECOND


def test_tainted_node_needs_toleration(world: KServeEnvironment) -> None:
    taint = {"key": "example.com/pool", "value": "serving", "effect": "NoSchedule"}
    tolerations = [{"key": taint["key"], "operator": "Exists"}]
    world.kserve.api.patch(NODES, NODE, "", {"spec": {"taints": [taint]}})
    try:
        with pytest.raises(ProcessFailedError, match="untolerated taint"):
            world.deploy(FIRST)
        pool = {"node_selector": {"kubernetes.io/hostname": NODE}, "tolerations": tolerations}
        assert world.identify(world.deploy(FIRST, **pool).url) == FIRST
        assert world.deploy(SECOND, canary=10, **pool).canary is not None
        assert world.identify(world.client.promote(NAME, READY_SECONDS).url) == SECOND
    finally:
        world.kserve.api.patch(NODES, NODE, "", {"spec": {"taints": None}})


def test_pull_secret_of_private_registry(world: KServeEnvironment, registry: str, tmp_path: Path) -> None:
    base, network = push_busybox(registry, tmp_path), world.kserve.cluster.network
    with start_registry(tmp_path / "private", htpasswd=True, address=network.outside) as private:
        world.kserve.cluster.allow_plain_http(private.host)
        login = write_login(tmp_path / "config.json", private.host)
        config = RegistryConfig(insecure=(registry, private.host), docker_config=login)
        push_model(world.bundles[FIRST], f"{private.host}/models/{FIRST}:1", config, base=base)
        world.store = f"oci://{private.host}/models"
        with pytest.raises(ProcessFailedError, match=r"ErrImagePull|ImagePullBackOff"):
            world.deploy(f"{FIRST}:1")
        world.kserve.api.apply({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "pull", "namespace": world.client.namespace},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": login.read_text()},
        })  # fmt: skip
        assert world.identify(world.deploy(f"{FIRST}:1", image_pull_secrets=["pull"]).url) == FIRST


def test_canary_in_restricted_namespace(restricted_world: KServeEnvironment, store: ObjectStore) -> None:
    """With the settings of docs/deployment.md: a policy for the router, a security context for the initializer."""
    world, api = restricted_world, restricted_world.kserve.api
    world.kserve.add_store(world.client.namespace, store)
    world.store = f"s3://{BUCKET}"
    (container,) = api.list(STORAGE_CONTAINERS)
    name = container["metadata"]["name"]
    policies = list(yaml.safe_load_all(POLICY.read_text()))
    api.patch(STORAGE_CONTAINERS, name, "", {"spec": {"container": {"securityContext": SECURITY_CONTEXT}}})
    try:
        for document in policies:
            api.apply(document)
        assert world.identify(world.deploy(f"{FIRST}/", service_account="models").url) == FIRST
        # The API server reads a new policy within seconds.
        wait_for(lambda: mutates_router(world), lambda: "the policy changes no pod")
        assert world.deploy(f"{SECOND}/", service_account="models", canary=10).canary is not None
        assert world.identify(world.client.promote(NAME, READY_SECONDS).url) == SECOND
    finally:
        for document in reversed(policies):
            api.delete(api.resolve_resource(document["apiVersion"], document["kind"]), document["metadata"]["name"])
        api.patch(STORAGE_CONTAINERS, name, "", {"spec": {"container": {"securityContext": None}}})


def mutates_router(world: KServeEnvironment) -> bool:
    """Return whether a router's pod gets a seccomp profile."""
    metadata = {"name": "router", "namespace": world.client.namespace, "labels": {ROUTER_LABEL: "router"}}
    context = {**SECURITY_CONTEXT, "seccompProfile": None}
    container = {"name": "router", "image": "example.com/router:1", "securityContext": context}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    try:
        world.kserve.api.apply(pod, dry_run=True)
    except ForbiddenError:
        return False
    return True


def wait_for_failed_pod(world: KServeEnvironment) -> float:
    """Wait until a container of a pod has ended; return the time of `time.monotonic`."""
    for pods in world.kserve.api.watch(PODS, world.client.namespace, timeout=READY_SECONDS):
        if any(map(get_pod_failure, map(read_pod, pods.values()))):
            return time.monotonic()
    raise AssertionError("no pod fails")


@contextlib.contextmanager
def scale_by_requests(kserve: KServe) -> Iterator[dict[str, Any]]:
    with run_keda(kserve) as prometheus:
        yield {"scale_metric": "in_flight", "scale_target": 2, "prometheus": prometheus}


@contextlib.contextmanager
def scale_by_cpu(kserve: KServe) -> Iterator[dict[str, Any]]:
    with run_metrics_server(kserve):
        yield {"scale_metric": "cpu", "scale_target": 100}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scale", [scale_by_requests, scale_by_cpu])
def test_replicas_follow_load(world: KServeEnvironment, scale: Any) -> None:
    """Load makes two replicas and silence one; no request is lost during both and a canary between."""
    namespace = world.client.namespace
    with scale(world.kserve) as options, resolve_services(world.kserve.cluster):
        scaling = {"max_replicas": 2, **options}
        url = world.deploy(FIRST, **scaling).url
        sample, is_over = world.read_sample()[0].tolist(), threading.Event()
        models: list[str] = []

        def keep_asking() -> None:
            while not is_over.is_set():
                (prediction,) = predict_v1(url, NAME, [sample])
                models.append(world.recognise(prediction["output"]))

        with ThreadPoolExecutor(8) as executor:
            clients = [executor.submit(keep_asking) for _ in range(8)]
            try:
                wait_replicas(world.kserve, f"{NAME}-predictor", namespace, 2)
                world.deploy(SECOND, canary=50)
                world.client.promote(NAME, READY_SECONDS)
                status = world.client.get(NAME)
                assert (status.model, status.scaling) == (world.locate(SECOND), f"1 to 2 by {options['scale_metric']}")
            finally:
                is_over.set()
            for client in clients:
                client.result()
        assert set(models) == {FIRST, SECOND}
        wait_replicas(world.kserve, f"{NAME}-predictor", namespace, 1)
