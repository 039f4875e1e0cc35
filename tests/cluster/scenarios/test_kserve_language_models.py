"""Language models under KServe's own controller: examples/kserve with a small model in an object store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kfp_mindspore.inference.backends.kserve import SERVICES
from kfp_mindspore.inference.graph import deploy_graph
from kfp_mindspore.inference.service import LANGUAGE_FORMAT
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.lm.bundle.causal import import_model
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.kserve_images import INITIALIZER_IMAGE, SERVER_IMAGE
from tests.support.controllers.keda_cluster import run_keda
from tests.support.controllers.kserve_cluster import KServe, resolve_services, wait_replicas
from tests.support.controllers.llmisvc_cluster import run_llmisvc
from tests.support.language.model_hub import ModelHub
from tests.support.language.tiny_language_model import write_random_adapter, write_source
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store

pytestmark = pytest.mark.timeout(1200)

EXAMPLES = ROOT / "examples" / "kserve"
READY_SECONDS = 400.0
LLM_SERVICES = Resource("serving.kserve.io", "v1alpha2", "llminferenceservices", "LLMInferenceService")
ROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
ADAPTERS = ("support-v1", "support-v2")


@pytest.fixture(scope="module")
def language_store(kserve: KServe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """Return an S3 server with a bundle, the Hugging Face directory it was imported from, and two adapters."""
    root = tmp_path_factory.mktemp("language-models")
    import_model(write_source(root / "source"), root / "bundle")
    for seed, name in enumerate(ADAPTERS):
        write_random_adapter(root / name, seed)
    with start_object_store(kserve.cluster.network.outside) as store:
        for file in filter(Path.is_file, root.rglob("*")):
            store.put(str(file.relative_to(root)), file.read_bytes())
        yield store


@pytest.fixture(scope="module")
def namespace(kserve: KServe, language_store: ObjectStore) -> Iterator[str]:
    kserve.api.apply(kserve.build_runtime(LANGUAGE_FORMAT))
    with kserve.make_namespace() as namespace:
        kserve.add_store(namespace, language_store)
        yield namespace


def read_example(name: str, namespace: str, **replaced: str) -> list[dict[str, Any]]:
    """Return an example's documents with other URIs, in a namespace; the small model takes 128 tokens."""
    text = (EXAMPLES / name).read_text().replace(".models.svc", f".{namespace}.svc").replace("=2048", "=128")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        document["metadata"]["namespace"] = namespace
    return documents


def wait_ready(kserve: KServe, resource: Resource, name: str, namespace: str) -> None:
    document: dict[str, Any] = {}
    for found in kserve.api.watch(resource, namespace, fields=f"metadata.name={name}", timeout=READY_SECONDS):
        document = found.get(name) or {}
        conditions = (document.get("status") or {}).get("conditions") or []
        if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
            return
    raise AssertionError(f"{name} is not ready after {READY_SECONDS:g} s: {document.get('status')}")


def wait_one(kserve: KServe, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
    """Wait until there is an object, and return it."""
    for found in kserve.api.watch(resource, namespace, fields=f"metadata.name={name}", timeout=READY_SECONDS):
        if name in found:
            return dict(found[name])
    raise AssertionError(f"no {resource.kind} {name} after {READY_SECONDS:g} s")


def chat(url: str, model: str) -> str:
    """Return the answer to a question, without randomness."""
    messages = [{"role": "user", "content": "dog 3?"}]
    body = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    response = httpx.post(url, json=body, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("model", ["bundle", "source"])
def test_bundle_and_hugging_face_directory_are_served(kserve: KServe, namespace: str, model: str) -> None:
    (document,) = read_example(
        "language-model.yaml", namespace, **{"hf://HuggingFaceTB/SmolLM2-135M-Instruct": f"s3://{BUCKET}/{model}"}
    )
    document["metadata"]["name"] = name = f"chat-{model}"
    document["spec"]["predictor"]["serviceAccountName"] = "models"
    kserve.api.apply(document)
    wait_ready(kserve, SERVICES, name, namespace)
    with resolve_services(kserve.cluster):
        assert chat(f"http://{name}-predictor.{namespace}.svc.cluster.local/openai/v1/chat/completions", name)
    kserve.api.delete(SERVICES, name, namespace)


def test_model_of_hugging_face_hub_is_served(kserve: KServe, namespace: str, tmp_path: Path) -> None:
    write_source(tmp_path / "HuggingFaceTB" / "SmolLM2-135M-Instruct")
    with ModelHub(tmp_path, kserve.cluster.network.outside) as hub:
        container = {
            "name": "storage-initializer",
            "image": INITIALIZER_IMAGE,
            "env": [{"name": "HF_ENDPOINT", "value": hub.url}],
        }
        storage = {
            "apiVersion": "serving.kserve.io/v1alpha1",
            "kind": "ClusterStorageContainer",
            "metadata": {"name": "hub"},
            "spec": {"container": container, "supportedUriFormats": [{"prefix": "hf://"}]},
        }
        kserve.api.apply(storage)
        (document,) = read_example("language-model.yaml", namespace)
        document["spec"]["predictor"]["storageContainerName"] = "hub"
        kserve.api.apply(document)
        name = document["metadata"]["name"]
        wait_ready(kserve, SERVICES, name, namespace)
        assert any(request.endswith("/model.safetensors") for request in hub.requests)
        with resolve_services(kserve.cluster):
            assert chat(f"http://{name}-predictor.{namespace}.svc.cluster.local/openai/v1/chat/completions", name)
        kserve.api.delete(SERVICES, name, namespace)


def test_router_splits_requests_between_adapters(kserve: KServe, namespace: str) -> None:
    uris = {"s3://models/chat/": f"s3://{BUCKET}/source", "s3://adapters/": f"s3://{BUCKET}/"}
    *services, graph = read_example("adapter-canary.yaml", namespace, **uris)
    for step in graph["spec"]["nodes"]["chat"]["steps"]:
        step["weight"] = 50
    for document in services:
        kserve.api.apply(document)
    for document in services:
        wait_ready(kserve, SERVICES, document["metadata"]["name"], namespace)
    deploy_graph(kserve.api, graph, wait_seconds=READY_SECONDS)
    url = f"http://{graph['metadata']['name']}.{namespace}.svc.cluster.local"
    route = f"{namespace}.svc.cluster.local/openai/v1/chat/completions"
    with resolve_services(kserve.cluster):
        expected = {chat(f"http://{name}-predictor.{route}", "support") for name in ("chat", "chat-canary")}
        answers = {chat(url, "support") for _ in range(40)}
        base = chat(f"http://chat-predictor.{route}", "chat")
    assert len(expected) == 2
    assert answers == expected
    assert base not in expected


@pytest.fixture(scope="module")
def prometheus(kserve: KServe) -> Iterator[str]:
    with run_keda(kserve) as url:
        yield url


def test_replicas_follow_waiting_requests(kserve: KServe, namespace: str, prometheus: str) -> None:
    replaced = {
        "s3://models/chat/": f"s3://{BUCKET}/bundle",
        "http://prometheus.monitoring.svc.cluster.local:9090": prometheus,
        "maxReplicas: 4": "maxReplicas: 2",
        "--max-num-seqs=8": "--max-num-seqs=1",
        "stabilizationWindowSeconds: 600": "stabilizationWindowSeconds: 1",
    }
    (document,) = read_example("autoscaling.yaml", namespace, **replaced)
    document["spec"]["predictor"]["serviceAccountName"] = "models"
    document["metadata"]["name"] = "chat-scaled"
    metric = document["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["metric"]
    metric["query"] = metric["query"].replace('"chat"', '"chat-scaled"')
    kserve.api.apply(document)
    wait_ready(kserve, SERVICES, "chat-scaled", namespace)
    url = f"http://chat-scaled-predictor.{namespace}.svc.cluster.local/openai/v1/chat/completions"
    enough = threading.Event()

    def keep_asking() -> None:
        while not enough.is_set():
            assert chat(url, "chat-scaled")

    with resolve_services(kserve.cluster), ThreadPoolExecutor(12) as pool:
        clients = [pool.submit(keep_asking) for _ in range(12)]
        try:
            wait_replicas(kserve, "chat-scaled-predictor", namespace, 2)
        finally:
            enough.set()
        for client in clients:
            client.result()
    wait_replicas(kserve, "chat-scaled-predictor", namespace, 1)
    kserve.api.delete(SERVICES, "chat-scaled", namespace)


@pytest.fixture(scope="module")
def llmisvc(kserve: KServe) -> Iterator[None]:
    with run_llmisvc(kserve):
        yield


def make_llm_service(kserve: KServe, namespace: str, name: str) -> dict[str, Any]:
    """Apply the example's configuration for the pods of these tests; return the example's service."""
    uris = {"s3://adapters/": f"s3://{BUCKET}/", "hf://HuggingFaceTB/SmolLM2-135M-Instruct": f"s3://{BUCKET}/source"}
    configuration, service = read_example("llm-inference-service.yaml", namespace, **uris)
    template = configuration["spec"]["template"]
    claims = [volume["name"] for volume in kserve.packages.volumes]
    template["volumes"] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    (container,) = template["containers"]
    container |= {"image": SERVER_IMAGE, "volumeMounts": kserve.packages.mounts}
    container["resources"]["requests"] = {"cpu": "50m", "memory": "128Mi"}
    kserve.api.apply(configuration)
    service["metadata"]["name"] = name
    service["spec"] |= {"replicas": 1, "template": {"serviceAccountName": "models"}}
    return service


def test_llm_inference_service_serves_model_and_adapter(kserve: KServe, namespace: str, llmisvc: None) -> None:
    service = make_llm_service(kserve, namespace, "chat-llm")
    kserve.api.apply(service)
    wait_ready(kserve, LLM_SERVICES, "chat-llm", namespace)
    url = f"http://chat-llm-kserve-workload-svc.{namespace}.svc.cluster.local:8000/v1/chat/completions"
    with resolve_services(kserve.cluster):
        answers = {model: chat(url, model) for model in ("chat", "support")}
        assert chat(url, f"publishers/{namespace}/models/chat") == answers["chat"] != answers["support"]
    kserve.api.delete(LLM_SERVICES, "chat-llm", namespace)


def test_router_of_llm_inference_service_leads_to_its_pool(kserve: KServe, namespace: str, llmisvc: None) -> None:
    service = make_llm_service(kserve, namespace, "chat-routed")
    service["spec"]["router"] = {"gateway": {}, "route": {}, "scheduler": {}}
    kserve.api.apply(service)
    pool = wait_one(kserve, POOLS, "chat-routed-inference-pool", namespace)
    route = wait_one(kserve, ROUTES, "chat-routed-kserve-route", namespace)
    assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    backends = {(item["kind"], item["name"]) for rule in route["spec"]["rules"] for item in rule["backendRefs"]}
    assert ("InferencePool", "chat-routed-inference-pool") in backends
    kserve.api.delete(LLM_SERVICES, "chat-routed", namespace)
