"""KServe's serving runtime for model bundles, for the cluster or one namespace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT
from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors
from kfp_mindspore.options import option
from kfp_mindspore.settings import PLACEHOLDER_SERVER_IMAGE

API_VERSION = "serving.kserve.io/v1alpha1"
RUNTIME_NAME = "kfp-mindspore-server"
LANGUAGE_RUNTIME_NAME = "kfp-mindspore-lm-server"
# MindSpore's major version, which wrote the MindIR. An InferenceService that names no version matches as well.
FORMAT_VERSION = "2"
HTTP_PORT = 8080
GRPC_PORT = 8081
MODEL_DIRECTORY = "/mnt/models"
# Startup deadline for loading and warm-up; KServe's progress deadline for a rollout is the same.
STARTUP_SECONDS = 600


@dataclass(frozen=True)
class RuntimeOptions:
    """Options of a serving runtime, see `build_serving_runtime`.

    Args:
        image: The server's image, by digest. [default: a placeholder]
        namespace: Write a ServingRuntime of this namespace. [default: one for the cluster]
        name: Name of the runtime. [default: kfp-mindspore-server, for mindspore-lm …-lm-server]
        model_format: Model format; the image needs the extra lm for mindspore-lm.
        auto_select: Whether KServe picks it for the format by itself.
    """

    image: str = PLACEHOLDER_SERVER_IMAGE
    namespace: str = ""
    name: str = ""
    model_format: str = option(MODEL_FORMAT, enum=(MODEL_FORMAT, LANGUAGE_FORMAT))
    auto_select: bool = True


@dataclass(frozen=True)
class _PodSize:
    """A format's runtime name, resources and size of /tmp."""

    name: str
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    disk: str


_POD_SIZES = {
    # A server with a small model uses 0.3 GiB and no CPU when idle; KServe's default requests 1 CPU and 2 GiB per pod.
    # Under load HTTP and the graph use one core each.
    MODEL_FORMAT: _PodSize(RUNTIME_NAME, {"cpu": "500m", "memory": "1Gi"}, {"cpu": "2", "memory": "2Gi"}, "1Gi"),
    # SmolLM2-135M: 1.5 GiB for weights, 8 slots of 2,048 tokens and prefix cache; before, 1.3 GiB for its import. /tmp
    # receives the imported float32 weights.
    LANGUAGE_FORMAT: _PodSize(
        LANGUAGE_RUNTIME_NAME, {"cpu": "2", "memory": "4Gi"}, {"cpu": "4", "memory": "8Gi"}, "16Gi"
    ),
}
_GRACE_FLAG = "--grace_period=20"
# The manifest's comments, each after the first line that matches: access control is off by default.
_COMMENTS = {
    f"    - {_GRACE_FLAG}\n": """\
    # Access, see docs/serving.md: bearer tokens, and load, unload and metrics on a port of their own, which then is
    # prometheus.kserve.io/port, too.
    # - --token-file=/etc/mindsporeserver/tokens
    # - --management-port=8082
""",
    "      mountPath: /tmp\n": """\
    # - {name: tokens, mountPath: /etc/mindsporeserver, readOnly: true}
""",
    "      sizeLimit: .*\n": """\
  # - {name: tokens, secret: {secretName: mindsporeserver-tokens, defaultMode: 0440}}
""",
}


def build_serving_runtime(
    image: str,
    *,
    namespace: str | None = None,
    auto_select: bool = True,
    name: str = "",
    model_format: str = MODEL_FORMAT,
) -> dict[str, Any]:
    """Return the runtime as a manifest.

    Args:
        image: The server's image, by digest: `registry/name@sha256:…`.
        namespace: For a ServingRuntime that only this namespace uses; None for a ClusterServingRuntime.
        auto_select: Whether KServe selects it for InferenceServices with the format.
        name: Runtime name; empty for `kfp-mindspore-server`, and `kfp-mindspore-lm-server` for language models.
        model_format: `mindspore`, or `mindspore-lm` for language models, whose image needs the extra `lm`.

    Raises:
        ValidationError: Naming each field that is wrong.
    """
    if model_format not in _POD_SIZES:
        raise ValidationError(
            [f"model_format: must be one of {', '.join(_POD_SIZES)}, got {model_format!r}"], subject="serving runtime"
        )
    size = _POD_SIZES[model_format]
    name = name or size.name
    errors = []
    if not image or image != image.strip() or any(character.isspace() for character in image):
        errors.append(f"image: must be an image such as registry.example.com/server@sha256:…, got {image!r}")
    if namespace is not None:
        errors += list_namespace_errors("namespace", namespace)
    if errors := [*errors, *list_name_errors("name", name)]:
        raise ValidationError(errors, subject="serving runtime")
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/name": size.name}}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {
        "apiVersion": API_VERSION,
        "kind": "ServingRuntime" if namespace is not None else "ClusterServingRuntime",
        "metadata": metadata,
        "spec": {
            "annotations": {"prometheus.kserve.io/port": str(HTTP_PORT), "prometheus.kserve.io/path": "/metrics"},
            "supportedModelFormats": [
                {"name": model_format, "version": FORMAT_VERSION, "autoSelect": auto_select, "priority": 1}
            ],
            "protocolVersions": ["v1", "v2", "grpc-v2"],
            "multiModel": False,
            "containers": [_build_container(image, size)],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": size.disk}}],
        },
    }


def render_serving_runtime(manifest: dict[str, Any]) -> str:
    """Return a `build_serving_runtime` manifest as YAML, with access options as comments."""
    import yaml

    text = yaml.safe_dump(manifest, sort_keys=False, width=120)
    for line, comment in _COMMENTS.items():
        text = re.sub(line, rf"\g<0>{comment}", text, count=1)
    return text


def _build_container(image: str, size: _PodSize) -> dict[str, Any]:
    return {
        "name": "kserve-container",
        "image": image,
        # No ports, as in KServe's own runtimes: its default is 8080, and Knative allows one port only, so that an
        # InferenceService that wants gRPC names the port itself.
        "args": [
            "--model_name={{.Name}}",
            f"--model_dir={MODEL_DIRECTORY}",
            f"--http_port={HTTP_PORT}",
            f"--grpc_port={GRPC_PORT}",
            # kube-proxy routes new connections to a terminating pod for some time; together less than the pod's 30 s.
            "--drain_seconds=5",
            _GRACE_FLAG,
        ],
        # Liveness succeeds while MindSpore is imported, readiness once every batch size is compiled. The startup probe
        # is the deadline, and its 1 s period bounds the readiness delay.
        "startupProbe": _probe("ready", period=1, timeout=1, failures=STARTUP_SECONDS),
        "readinessProbe": _probe("ready", period=5, timeout=5, failures=3),
        "livenessProbe": _probe("live", period=10, timeout=5, failures=6),
        "resources": {"requests": dict(size.requests), "limits": dict(size.limits)},
        # The `restricted` Pod Security Standard. No uid: OpenShift assigns one.
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # For a transform's libraries, and for downloads and imports of --model_dir.
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(kind: str, *, period: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": f"/v2/health/{kind}", "port": HTTP_PORT},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
