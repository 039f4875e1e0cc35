"""Services under KServe's own controller and webhooks."""

from __future__ import annotations

from typing import Any

from tests.support.kserve import KServe
from tests.support.operators import wait_for


def test_runtime_is_selected_and_serves_a_bundle_of_a_claim(kserve: KServe, lifecycle: Any) -> None:
    with kserve.make_namespace() as namespace:
        kserve.make_models(namespace, "models", {"digits": lifecycle.bundle})
        kserve.api.apply({
            "apiVersion": "serving.kserve.io/v1beta1",
            "kind": "InferenceService",
            "metadata": {"name": "digits", "namespace": namespace},
            "spec": {"predictor": {"model": {
                "modelFormat": {"name": "mindspore"},
                "protocolVersion": "v2",
                "storageUri": "pvc://models/digits",
            }}},
        })  # fmt: skip
        resource = kserve.api.resolve_resource("serving.kserve.io/v1beta1", "InferenceService")
        def ready():
            status = kserve.api.get(resource, "digits", namespace).get("status", {})
            return any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
        wait_for(ready, lambda: str(kserve.api.get(resource, "digits", namespace).get("status")))
        import json
        print(json.dumps(kserve.api.get(resource, "digits", namespace), indent=1))
