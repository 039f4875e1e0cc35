"""Job pod security contexts, for namespaces with the restricted Pod Security level. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kfp_mindspore.settings import POD_USER


def restrict_pod(spec: dict[str, Any]) -> None:
    """Add the fields that the restricted level requires to a pod's spec; the template's fields stay as they are.

    A template that runs as root, by `runAsUser: 0`, `runAsNonRoot: false` or `privileged: true` on its pod or a
    container, gets no such fields: they would break it, and a restricted namespace refuses it anyway.

    Args:
        spec: The pod spec to create, which is changed.
    """
    # Training code calls no Kubernetes API as a rule.
    spec.setdefault("automountServiceAccountToken", False)
    containers = [container for key in ("initContainers", "containers") for container in spec.get(key) or []]
    pod: Mapping[str, Any] = spec.get("securityContext") or {}
    if any(map(_runs_as_root, [pod, *(container.get("securityContext") or {} for container in containers)])):
        return
    spec["securityContext"] = {
        "runAsNonRoot": True,
        # Without a user, the image's, which is root for most images, would be refused by the kubelet.
        "runAsUser": POD_USER,
        "fsGroup": pod.get("runAsUser", POD_USER),
        # Otherwise the kubelet changes each file's group in a claim before each start.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
        **pod,
    }
    for container in containers:
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **(container.get("securityContext") or {}),
        }


def _runs_as_root(context: Mapping[str, Any]) -> bool:
    return context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False or context.get("privileged") is True
