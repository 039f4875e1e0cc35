"""The resource names of GPUs and NPUs: which of them are devices, and which are shares of one.

A device plugin advertises each device under one name, and a plugin that slices devices requests memory and cores of a
slice beside it. Only the former are counted: a process trains on each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.quantities import parse_quantity
from kfp_mindspore.settings import ASCEND, AUTO, DEVICE_VARIABLE, GPU, POD_DEVICE_VARIABLE

# Where a device is named without a resource. NPUs of other types have other names.
DEFAULT_RESOURCES = {GPU: "nvidia.com/gpu", ASCEND: "huawei.com/Ascend910"}
# MindSpore has no plugin for others.
_TYPES = {"huawei.com/": ASCEND, "nvidia.com/": GPU, "volcano.sh/": GPU}
PREFIXES = ("amd.com/", "huawei.com/", "nvidia.com/", "volcano.sh/gpu-", "volcano.sh/vgpu-")


@dataclass(frozen=True)
class DeviceResource:
    """Resource names of one meaning.

    Args:
        names: Regular expression of whole names.
        is_device: Whether an amount of 1 is a device, or a slice, which a process of its own uses.
        plugin: The device plugins that define them.
    """

    names: str
    is_device: bool
    plugin: str


RESOURCES = (
    DeviceResource(r"huawei\.com/Ascend\d\w*(-\d)?-memory", False, "HAMi, Volcano: memory of a vNPU, MiB"),
    DeviceResource(r"huawei\.com/Ascend\d\w*(-\d)?-core", False, "HAMi, Volcano: AI cores of a vNPU, per cent"),
    DeviceResource(r"huawei\.com/npu-core", False, "MindCluster, Volcano: AI cores of a dynamic vNPU"),
    DeviceResource(r"huawei\.com/npu-(cpu|dvpp|memory-\w+)", False, "Koordinator, Huawei Cloud: shares of a vNPU"),
    # Slices: Ascend310P-2c, Ascend910-12c.3cpu.32g, Ascend310P-4c.4cpu.dvpp, Ascend910-vir08, Ascend310P-IPro.
    DeviceResource(r"huawei\.com/Ascend\d\w*(-[\w.]+)?", True, "Ascend device plugin, MindCluster, HAMi, Volcano"),
    DeviceResource(r"huawei\.com/ascend-\w+", True, "Huawei Cloud CCE: ascend-310, ascend-1980"),
    DeviceResource(r"huawei\.com/npu(-number)?", True, "MindCluster for Ascend 950; Huawei Cloud"),
    DeviceResource(r"nvidia\.com/(gpumem|gpumem-percentage|gpucores|priority)", False, "HAMi: shares of a vGPU"),
    DeviceResource(r"nvidia\.com/(gpu|pgpu|vgpu)(\.shared)?", True, "NVIDIA device plugin"),
    DeviceResource(r"nvidia\.com/mig-[\w.+]+", True, "NVIDIA device plugin: MIG profiles, such as mig-1g.10gb"),
    DeviceResource(
        r"volcano\.sh/(gpu-memory|vgpu-(memory|memory-percentage|cores))", False, "Volcano: shares of a GPU"
    ),
    DeviceResource(r"volcano\.sh/v?gpu-number", True, "Volcano: GPUs and vGPUs"),
    DeviceResource(r"amd\.com/gpu", True, "AMD device plugin"),
    DeviceResource(r"amd\.com/[csdqt]px_nps\d", True, "AMD device plugin: partitions"),
)


@dataclass(frozen=True)
class DeviceRequest:
    """GPUs and NPUs that a container requests.

    Attributes:
        count: Devices and slices.
        names: Known resources, with shares.
        unknown: Resources with the prefix of a vendor and no known name, which count as 0.
    """

    count: int = 0
    names: tuple[str, ...] = field(default=())
    unknown: tuple[str, ...] = field(default=())


def read_devices(container: Mapping[str, Any], path: str) -> DeviceRequest:
    """Return the devices in a container's resources.

    Args:
        container: A container with ResourceRequirements; an amount is a Kubernetes quantity.
        path: The container's path, for messages.

    Raises:
        ValidationError: A device's amount is not a whole number.
    """
    resources = container.get("resources") or {}
    amounts = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    count, names, unknown = 0, [], []
    for name, amount in amounts.items():
        found = next((item for item in RESOURCES if re.fullmatch(item.names, name)), None)
        if found is not None:
            names.append(name)
            count += _read_count(name, amount, path) if found.is_device else 0
        elif name.startswith(PREFIXES):
            unknown.append(name)
    return DeviceRequest(count, tuple(names), tuple(unknown))


def set_device(container: dict[str, Any], device: str) -> None:
    """Set a worker's device in its environment, and request one if no resource is a device.

    Args:
        container: The worker's container; its own variables are kept.
        device: CPU, GPU, Ascend, or `auto` for the type of the requested resources.

    Raises:
        ValidationError: The resources are another device's.
    """
    resources = container.get("resources") or {}
    names = {*(resources.get("requests") or {}), *(resources.get("limits") or {})}
    types = {kind for name in names for prefix, kind in _TYPES.items() if name.startswith(prefix)}
    if device != AUTO and types - {device}:
        found = ", ".join(sorted(name for name in names if name.startswith(PREFIXES)))
        raise ValidationError([f"device: is {device}, and resources requests {found}"])
    if device in DEFAULT_RESOURCES and not types and not resources.get("claims"):
        one = {DEFAULT_RESOURCES[device]: "1"}
        container["resources"] = {
            **resources,
            **{key: {**(resources.get(key) or {}), **one} for key in ("requests", "limits")},
        }
    variable, value = (DEVICE_VARIABLE, device) if device != AUTO else (POD_DEVICE_VARIABLE, "")
    if device == AUTO and len(types) == 1:
        (value,) = types
    present = container.get("env") or []
    if value and variable not in [item.get("name") for item in present]:
        container["env"] = [*present, {"name": variable, "value": value}]


def drop_devices(pod: dict[str, Any]) -> None:
    """Remove devices and their shares from a pod that computes nothing, such as a scheduler's.

    Those are all resources with a vendor's name, known or not, and all claims of Dynamic Resource Allocation.

    Args:
        pod: A pod spec that gets containers of its own: its template's keep their devices.
    """
    pod.pop("resourceClaims", None)
    for key in ("initContainers", "containers"):
        if key in pod:
            pod[key] = [_drop_extended_resources(container) for container in pod[key] or ()]


def _drop_extended_resources(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = {key: value for key, value in (container.get("resources") or {}).items() if key != "claims"}
    for key in ("limits", "requests"):
        if key in resources:
            resources[key] = {name: amount for name, amount in (resources[key] or {}).items() if "/" not in name}
    return {**container, "resources": resources} if container.get("resources") else dict(container)


def _read_count(name: str, amount: Any, path: str) -> int:
    number = parse_quantity(amount)
    if number is None or number.denominator != 1 or number < 0:
        raise ValidationError([f"{path}.resources[{name}]: must be a whole number of devices, got {amount!r}"])
    return number.numerator
