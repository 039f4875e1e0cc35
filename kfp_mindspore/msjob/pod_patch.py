"""Additions to a job's pod templates, in Kubernetes' shape."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.msjob.names import CONTAINER_NAME

Object = Mapping[str, Any]


@dataclass(frozen=True)
class PodPatch:
    """Additions to a pod template; empty fields add nothing.

    Args:
        env: The training container's EnvVars, `valueFrom` included.
        volumes: The pod's volumes.
        volume_mounts: The training container's mounts.
        resources: The training container's ResourceRequirements.
        node_selector: Node labels for the pod.
        tolerations: The pod's tolerations.
        affinity: The pod's affinity: nodeAffinity, podAffinity, podAntiAffinity.
        labels: Pod labels.
        annotations: Pod annotations.
        image_pull_secrets: Registry secret names: [{"name": …}].
        service_account_name: The pod's service account.
        security_context: PodSecurityContext.
    """

    env: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    volume_mounts: Sequence[Object] = ()
    resources: Object = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Object] = ()
    affinity: Object = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: Sequence[Object] = ()
    service_account_name: str = ""
    security_context: Object = field(default_factory=dict)

    def merge(self, other: PodPatch) -> PodPatch:
        """Return both additions; where both set the same entry, `other`'s is used.

        Entries are the same by `name` (env, volumes, pull secrets), by `mountPath` (mounts), by key (mappings; requests
        and limits by resource), and tolerations by equality.
        """
        merged: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if isinstance(mine, str):
                merged[entry.name] = theirs or mine
            elif isinstance(mine, Mapping):
                merged[entry.name] = _merge_mapping(mine, theirs)
            else:
                merged[entry.name] = _merge_list(mine, theirs, _KEYS.get(entry.name, "name"))
        return PodPatch(**merged)


# The field that identifies a list entry; None: the entry itself.
_KEYS = {"volume_mounts": "mountPath", "tolerations": None}
_POD_FIELDS = {
    "volumes": "volumes",
    "node_selector": "nodeSelector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "image_pull_secrets": "imagePullSecrets",
    "service_account_name": "serviceAccountName",
    "security_context": "securityContext",
}
_CONTAINER_FIELDS = {"env": "env", "volume_mounts": "volumeMounts", "resources": "resources"}
_METADATA_FIELDS = {"labels": "labels", "annotations": "annotations"}


def patch_template(template: Object, patch: PodPatch) -> dict[str, Any]:
    """Return a pod template with additions; where both set the same entry, the patch's is used.

    Args:
        template: PodTemplateSpec; unchanged. Its training container is the one named `mindspore`.
        patch: The additions.
    """
    patched: dict[str, Any] = copy.deepcopy(dict(template))
    pod = patched.setdefault("spec", {})
    present = PodPatch(**_read(patched.get("metadata") or {}, _METADATA_FIELDS), **_read(pod, _POD_FIELDS))
    merged = present.merge(patch)
    _write(pod, merged, _POD_FIELDS)
    metadata = dict(patched.get("metadata") or {})
    _write(metadata, merged, _METADATA_FIELDS)
    if metadata:
        patched["metadata"] = metadata
    for container in pod.get("containers") or []:
        if container.get("name") == CONTAINER_NAME:
            _write(container, PodPatch(**_read(container, _CONTAINER_FIELDS)).merge(patch), _CONTAINER_FIELDS)
    return patched


def _read(document: Object, fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: document[key] for name, key in fields.items() if document.get(key)}


def _write(document: dict[str, Any], patch: PodPatch, fields: Mapping[str, str]) -> None:
    for name, key in fields.items():
        if value := getattr(patch, name):
            document[key] = copy.deepcopy(value if isinstance(value, str | Mapping) else list(value))


def _merge_mapping(mine: Object, theirs: Object) -> dict[str, Any]:
    """Merge nested mappings key by key; lists and scalars are replaced."""
    merged = dict(mine)
    for key, value in theirs.items():
        present = merged.get(key)
        both = isinstance(present, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge_mapping(present, value) if both else value  # type: ignore[arg-type]
    return merged


def _merge_list(mine: Sequence[Object], theirs: Sequence[Object], key: str | None) -> list[Object]:
    """Replace entries with the same key in their place and append the others."""
    merged = list(mine)
    for item in theirs:
        same = [
            index
            for index, other in enumerate(merged)
            if (other == item if key is None else other.get(key) == item.get(key))
        ]
        if same:
            merged[same[0]] = item
        else:
            merged.append(item)
    return merged
