"""KServe's serving runtime for model bundles, for the cluster or one namespace."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.inference.manifest import MODEL_FORMAT
from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors

API_VERSION = "serving.kserve.io/v1alpha1"
RUNTIME_NAME = "kfp-mindspore-server"
# MindSpore's major version, which wrote the MindIR. An InferenceService that names no version matches as well.
FORMAT_VERSION = "2"
HTTP_PORT = 8080
GRPC_PORT = 8081
MODEL_DIRECTORY = "/mnt/models"
# Startup deadline for loading and warm-up; KServe's progress deadline for a rollout is the same.
STARTUP_SECONDS = 600
_GRACE_FLAG = "--grace_period=20"
# The manifest's comments, each after a line that it has once: access control is off by default.
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
    "      sizeLimit: 1Gi\n": """\
  # - {name: tokens, secret: {secretName: mindsporeserver-tokens, defaultMode: 0440}}
""",
}


def build_serving_runtime(
    image: str, *, namespace: str | None = None, auto_select: bool = True, name: str = RUNTIME_NAME
) -> dict[str, Any]:
    """Return the runtime as a manifest.

    Args:
        image: The server's image, by digest: `registry/name@sha256:…`.
        namespace: For a ServingRuntime that only this namespace uses; None for a ClusterServingRuntime.
        auto_select: Whether KServe selects it for InferenceServices with the format `mindspore`.
        name: Runtime name.

    Raises:
        ValidationError: Naming each field that is wrong.
    """
    errors = []
    if not image or image != image.strip() or any(character.isspace() for character in image):
        errors.append(f"image: must be an image such as registry.example.com/server@sha256:…, got {image!r}")
    if namespace is not None:
        errors += list_namespace_errors("namespace", namespace)
    if errors := [*errors, *list_name_errors("name", name)]:
        raise ValidationError(errors, subject="serving runtime")
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/name": RUNTIME_NAME}}
    if namespace is not None:
        metadata["namespace"] = namespace
    return {
        "apiVersion": API_VERSION,
        "kind": "ServingRuntime" if namespace is not None else "ClusterServingRuntime",
        "metadata": metadata,
        "spec": {
            "annotations": {"prometheus.kserve.io/port": str(HTTP_PORT), "prometheus.kserve.io/path": "/metrics"},
            "supportedModelFormats": [
                {"name": MODEL_FORMAT, "version": FORMAT_VERSION, "autoSelect": auto_select, "priority": 1}
            ],
            "protocolVersions": ["v1", "v2", "grpc-v2"],
            "multiModel": False,
            "containers": [_build_container(image)],
            "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }


def render_serving_runtime(manifest: dict[str, Any]) -> str:
    """Return a `build_serving_runtime` manifest as YAML, with access options as comments."""
    import yaml

    text = yaml.safe_dump(manifest, sort_keys=False, width=120)
    for line, comment in _COMMENTS.items():
        text = text.replace(line, line + comment, 1)
    return text


def _build_container(image: str) -> dict[str, Any]:
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
        # A server with a small model uses 0.3 GiB and no CPU when idle; KServe's default requests 1 CPU and 2 GiB per
        # pod. Under load HTTP and the graph use one core each.
        "resources": {
            "requests": {"cpu": "500m", "memory": "1Gi"},
            "limits": {"cpu": "2", "memory": "2Gi"},
        },
        # The `restricted` Pod Security Standard. No uid: OpenShift assigns one.
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # For a transform's libraries, and for downloads from a URI in --model_dir.
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }


def _probe(kind: str, *, period: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": f"/v2/health/{kind}", "port": HTTP_PORT},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }
