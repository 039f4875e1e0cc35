"""The operator's namespace, Deployment, Service and NetworkPolicy."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.operator.install.options import LABELS, NAME, PORT, InstallOptions

Document = dict[str, Any]
_SELECTOR = {"app.kubernetes.io/name": NAME}
# Any user but root: the operator writes no file.
_USER = 65532


def build_namespace(options: InstallOptions) -> Document:
    """Return the operator's namespace, at the restricted Pod Security level."""
    levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "audit", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": options.namespace, "labels": {**LABELS, **levels}},
    }


def list_arguments(options: InstallOptions) -> list[str]:
    """Return the arguments of `kfp-mindspore operator run`."""
    arguments = ["--leader-elect", "--log-format=json", f"--metrics-port={PORT}"]
    arguments += [f"--namespace={namespace}" for namespace in options.watched]
    if options.gang_scheduler != "none":
        arguments.append(f"--gang-scheduler={options.gang_scheduler}")
    if options.pod_security != "restricted":
        arguments.append(f"--pod-security={options.pod_security}")
    if options.istio_sidecar:
        arguments.append("--istio-sidecar")
    return arguments


def build_deployment(options: InstallOptions) -> Document:
    """Return the Deployment: non-root, read-only root file system, no capabilities."""
    container: Document = {
        "name": "operator",
        "image": options.image,
        "command": ["kfp-mindspore", "operator", "run"],
        "args": list_arguments(options),
        "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "startupProbe": _probe("/healthz", period=2, failures=60),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=5, failures=3),
        # 1,000 jobs that start at once keep one core busy; 5,000 running jobs use about a quarter of the limit.
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(_SELECTOR)},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(options),
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": dict(_SELECTOR)},
            "template": {
                "metadata": {"labels": dict(LABELS)},
                "spec": {
                    "serviceAccountName": NAME,
                    "automountServiceAccountToken": True,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": _USER,
                        "runAsGroup": _USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "terminationGracePeriodSeconds": 30,
                    "topologySpreadConstraints": [spread],
                    "containers": [container],
                },
            },
        },
    }


def build_service(options: InstallOptions) -> Document:
    """Return the Service for Prometheus."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **_metadata(options, f"{NAME}-metrics"),
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT)},
        },
        "spec": {
            "selector": dict(_SELECTOR),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def build_network_policy(options: InstallOptions) -> Document:
    """Return the policy: ingress for probes and Prometheus, egress for DNS and the API server."""

    def ports(*pairs: tuple[int, str]) -> list[Document]:
        return [{"port": port, "protocol": protocol} for port, protocol in pairs]

    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(options),
        "spec": {
            "podSelector": {"matchLabels": dict(_SELECTOR)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"ports": ports((PORT, "TCP"))}],
            "egress": [{"ports": ports((53, "UDP"), (53, "TCP"), (443, "TCP"), (6443, "TCP"))}],
        },
    }


def _probe(path: str, *, period: int, failures: int) -> Document:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _metadata(options: InstallOptions, name: str = NAME) -> Document:
    return {"name": name, "namespace": options.namespace, "labels": dict(LABELS)}
