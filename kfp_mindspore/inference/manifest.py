"""The InferenceService of a service."""

from __future__ import annotations

import re
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference.service import Service

API_VERSION = "serving.kserve.io/v1beta1"
MODEL_FORMAT = "mindspore"
# URI schemes of KServe's storage initializer and mounts.
URI_SCHEMES = ("s3", "gs", "pvc", "http", "https", "hdfs", "webhdfs", "oci", "hf", "abfs", "abfss")
_URI = re.compile(r"([a-z][a-z0-9+.-]*)://.+")


def build_inference_service(service: Service) -> dict[str, Any]:
    """Return a service as an InferenceService (serving.kserve.io/v1beta1).

    The cluster selects the runtime with autoSelect for the format `mindspore`.

    Args:
        service: Its `model_dir` must be a URI that the cluster can read.

    Raises:
        ValidationError: Naming each field that is wrong.
    """
    service.validate()
    uri = str(service.model_dir)
    match = _URI.fullmatch(uri)
    if match is None or match[1] not in URI_SCHEMES:
        hint = "Copy the bundle to where the cluster can read it."
        if match is not None and match[1] == "minio":
            hint = "KServe does not know minio://: let the pipeline's root be s3://…"
        raise ValidationError(
            [f"model_dir: must be a URI with one of {', '.join(f'{scheme}://' for scheme in URI_SCHEMES)}, got {uri}"],
            subject=f"service {service.name}",
            hint=hint,
        )
    model: dict[str, Any] = {"modelFormat": {"name": MODEL_FORMAT}, "protocolVersion": "v2", "storageUri": uri}
    if service.server_args:
        # KServe appends them to those of the runtime.
        model["args"] = list(service.server_args)
    if service.resources:
        # Quantities are text in Kubernetes' own objects; a bare number is accepted from YAML.
        model["resources"] = {
            kind: {name: str(quantity) for name, quantity in entries.items()}
            for kind, entries in service.resources.items()
        }
    return {
        "apiVersion": API_VERSION,
        "kind": "InferenceService",
        "metadata": {
            "name": service.name,
            "namespace": service.namespace,
            "labels": {"app.kubernetes.io/managed-by": "kfp-mindspore"},
        },
        "spec": {"predictor": {"minReplicas": service.replicas, "maxReplicas": service.replicas, "model": model}},
    }
