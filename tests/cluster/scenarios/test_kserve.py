"""Services under KServe's own controller, webhooks and router."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kfp_mindspore.inference.smoke import run_smoke_test
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.testing import Lifecycle
from tests.support.kserve import KServe, resolve_services

SERVICES = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
# MindSpore starts in seconds, but every pod of a machine with two busy cores does so at once.
READY_SECONDS = 300.0


def test_runtime_is_selected_for_the_format_and_serves_a_bundle(kserve: KServe, lifecycle: Lifecycle) -> None:
    with kserve.make_namespace() as namespace:
        kserve.make_models(namespace, "models", {"digits": lifecycle.bundle})
        model = {"modelFormat": {"name": "mindspore"}, "protocolVersion": "v2", "storageUri": "pvc://models/digits"}
        kserve.api.apply({
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "metadata": {"name": "digits", "namespace": namespace},
            "spec": {"predictor": {"model": model}},
        })  # fmt: skip
        status = wait_ready(kserve, namespace, "digits")
        assert status["clusterServingRuntimeName"] == "kfp-mindspore-server"
        assert check_predictions(kserve, status["address"]["url"], lifecycle.bundle) < 1e-5


def wait_ready(kserve: KServe, namespace: str, name: str) -> dict[str, Any]:
    """Wait until an InferenceService is Ready and return its status."""
    status: dict[str, Any] = {}
    for found in kserve.api.watch(SERVICES, namespace, timeout=READY_SECONDS):
        status = found.get(name, {}).get("status", {})
        if any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", [])):
            return status
    raise AssertionError(f"{name} is not ready after {READY_SECONDS:g} s: {status}")


def check_predictions(kserve: KServe, url: str, bundle: Path) -> float:
    """Compare predictions with a bundle's verified outputs and return the largest difference."""
    with resolve_services(kserve.cluster):
        return run_smoke_test(url, "digits", bundle).max_abs_diff
