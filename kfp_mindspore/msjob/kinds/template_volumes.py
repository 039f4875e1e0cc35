"""Volumes for two pod templates that become one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.kube.pod_schema import list_fields


def move_volume_sources(template: dict[str, Any]) -> Iterator[str]:
    """Move sources such as `hostPath` from volumeMounts, where no operator reads them, to volumes; yield their paths.

    A mount that is left without a path is removed: the other template may have it.
    """
    pod = template["spec"]
    sources = list_fields("Volume") - list_fields("VolumeMount")
    for index, container in enumerate(list_mappings(pod, "containers")):
        mounts = list_mappings(container, "volumeMounts")
        for number, mount in enumerate(mounts):
            if source := {name: mount.pop(name) for name in sources & set(mount)}:
                pod["volumes"] = [*list_mappings(pod, "volumes"), {"name": mount.get("name"), **source}]
                yield f"template.spec.containers[{index}].volumeMounts[{number}].{'.'.join(source)}"
        if mounts:
            container["volumeMounts"] = [item for item in mounts if set(item) != {"name"}]


def merge_volumes(first: dict[str, Any], second: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give both templates the volumes and mounts in either; yield the path and the added names.

    Volumes with equal names, and mounts with equal paths, that differ stay different.
    """
    pods = first["spec"], second["spec"]
    owners = [("template.spec", "volumes", "name", *pods)]
    pairs = zip(*(list_mappings(pod, "containers") for pod in pods), strict=False)
    for index, (left, right) in enumerate(pairs):
        owners.append((f"template.spec.containers[{index}]", "volumeMounts", "mountPath", left, right))
    for path, field, key, left, right in owners:
        ours, theirs = ({str(item.get(key)): item for item in list_mappings(owner, field)} for owner in (left, right))
        if added := sorted(ours.keys() ^ theirs.keys()):
            names = sorted({**ours, **theirs})
            left[field] = [ours.get(name, theirs.get(name)) for name in names]
            right[field] = [theirs.get(name, ours.get(name)) for name in names]
            yield f"{path}.{field}", ", ".join(added)


def list_mappings(owner: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    """Return a field's mappings; empty for anything else, which validation refuses later."""
    items = owner.get(field)
    return items if isinstance(items, list) and all(isinstance(item, dict) for item in items) else []
