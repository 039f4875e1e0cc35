"""A language model's export under another server's runtime: llama.cpp's, with a smoke test, a canary and a rollback."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ProcessFailedError
from kfp_mindspore.inference import InferenceClient, KServeBackend, Service, run_smoke_test
from kfp_mindspore.inference.rest import wait_for_route
from kfp_mindspore.inference.service import ServiceStatus
from kfp_mindspore.lm.bundle.causal import import_model, read_model
from kfp_mindspore.lm.bundle.export_gguf import write_gguf
from tests.cluster.conftest import start
from tests.cluster.infrastructure.cluster import Cluster
from tests.cluster.infrastructure.packages import install_python_packages
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.kserve_images import SERVER_IMAGE
from tests.support.controllers.kserve_cluster import KServe, resolve_services
from tests.support.language import llama_server
from tests.support.language.tiny_language_model import write_source
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store

pytestmark = pytest.mark.timeout(1200)

READY_SECONDS = 300.0
NAME, RUNTIME, FORMAT = "chat", "llama-cpp", "gguf"
# The pin of tests/peers.
(LLAMA,) = [
    line
    for line in (ROOT / "tests" / "peers" / "requirements.txt").read_text().splitlines()
    if line.startswith("xllamacpp")
]


@pytest.fixture(scope="module")
def llama_packages(own_cluster: Cluster) -> Path:
    """Return a directory with llama.cpp for pods."""
    directory = own_cluster.make_volume("llama-cpp")
    start(lambda: install_python_packages(directory, LLAMA))
    shutil.copy(llama_server.__file__, directory / "serve.py")
    return directory


@pytest.fixture(scope="module")
def exports(kserve: KServe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Path], ObjectStore]]:
    """Return two models' bundles, and a store with their exports."""
    root = tmp_path_factory.mktemp("exports")
    bundles = {}
    with start_object_store(kserve.cluster.network.outside) as store:
        for seed, name in enumerate(("first", "second")):
            import_model(write_source(root / name / "source", seed), root / name / "bundle")
            write_gguf(read_model(root / name / "bundle"), root / name / "model.gguf", subject="model.gguf")
            store.put(f"{name}/model.gguf", (root / name / "model.gguf").read_bytes())
            bundles[name] = root / name / "bundle"
        yield bundles, store


def build_runtime(namespace: str) -> dict[str, Any]:
    container = {
        "name": "kserve-container",
        "image": SERVER_IMAGE,
        # KServe's webhook refuses PYTHONPATH among the variables of a runtime.
        "command": ["env", "PYTHONPATH=/opt/llama", "python", "/opt/llama/serve.py"],
        "args": ["--model", "/mnt/models/model.gguf", "--host", "0.0.0.0", "--port", "8080"],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8080}, "periodSeconds": 1},
        "volumeMounts": [{"name": "llama", "mountPath": "/opt/llama", "readOnly": True}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}},
    }
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "ServingRuntime",
        "metadata": {"name": RUNTIME, "namespace": namespace},
        "spec": {
            "supportedModelFormats": [{"name": FORMAT, "version": "1"}],
            "containers": [container],
            "volumes": [{"name": "llama", "persistentVolumeClaim": {"claimName": "llama"}}],
        },
    }


def test_export_is_tested_promoted_and_rolled_back(
    kserve: KServe, llama_packages: Path, exports: tuple[dict[str, Path], ObjectStore]
) -> None:
    bundles, store = exports
    with kserve.make_namespace() as namespace, resolve_services(kserve.cluster):
        kserve.add_store(namespace, store)
        kserve.add_claim(namespace, "llama", llama_packages)
        kserve.api.apply(build_runtime(namespace))
        client = InferenceClient(KServeBackend(kubeconfig=kserve.cluster.kubeconfig), namespace)

        def deploy(name: str, canary: int = 0) -> ServiceStatus:
            service = Service(
                *(NAME, f"s3://{BUCKET}/{name}/"),
                namespace=namespace,
                service_account="models",
                runtime=RUNTIME,
                model_format=FORMAT,
                model_name_flag="--alias",
                openai_path="/v1",
            )
            return client.deploy(service, wait_seconds=READY_SECONDS, canary=canary)

        status = deploy("first")
        wait_for_route(status.url)
        path = status.other_openai_path
        assert run_smoke_test(status.url, NAME, bundles["first"], openai_path=path).max_abs_diff <= 0.05
        canary = deploy("second", canary=50).canary
        assert canary is not None
        for url in (canary.url, canary.traffic_url):
            wait_for_route(url)
        # Another bundle than the canary's export.
        with pytest.raises(ProcessFailedError, match="by the OpenAI protocol: prompt 0 differs"):
            client.finish_canary(NAME, bundles["first"], wait_seconds=READY_SECONDS)
        status = client.get(NAME)
        assert (status.canary, status.model) == (None, f"s3://{BUCKET}/first/")
        deploy("second", canary=50)
        status, report = client.finish_canary(NAME, bundles["second"], wait_seconds=READY_SECONDS)
        assert (status.model, report.smoke.max_abs_diff <= 0.05) == (f"s3://{BUCKET}/second/", True)
        assert client.rollback(NAME, READY_SECONDS).model == f"s3://{BUCKET}/first/"
