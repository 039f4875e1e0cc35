"""Resource names of device plugins: devices, slices and the shares that are no devices."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.devices import DeviceRequest, drop_devices, read_devices, set_device
from kfp_mindspore.msjob import build_msjob
from kfp_mindspore.msjob.convert import export_job


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"huawei.com/Ascend910": 8}, 8),
        ({"huawei.com/Ascend310": "1"}, 1),
        ({"huawei.com/Ascend310P": "2"}, 2),
        ({"huawei.com/Ascend910A2": 4}, 4),
        ({"huawei.com/Ascend310P-2c": 1}, 1),
        ({"huawei.com/Ascend910-12c.3cpu.32g": 1}, 1),
        ({"huawei.com/Ascend310P-4c.4cpu.dvpp": 1}, 1),
        ({"huawei.com/Ascend910-vir08": 1}, 1),
        ({"huawei.com/Ascend910-10c.3cpu.16g.ndvpp": 1}, 1),
        ({"huawei.com/Ascend310P-IPro": "2"}, 2),
        ({"huawei.com/npu": 8}, 8),
        ({"huawei.com/npu-core": "8"}, 0),
        ({"huawei.com/npu-number": 1, "huawei.com/npu-core": 50, "huawei.com/npu-memory-1Gi": 16}, 1),
        ({"huawei.com/npu-core": "10", "huawei.com/npu-cpu": "3", "huawei.com/npu-dvpp": "50"}, 0),
        ({"huawei.com/ascend-310": "1"}, 1),
        ({"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": "28672", "huawei.com/Ascend910B3-core": 50}, 1),
        ({"huawei.com/Ascend910B4-1": 1, "huawei.com/Ascend910B4-1-memory": "28Gi"}, 1),
        ({"nvidia.com/gpu": "2"}, 2),
        ({"nvidia.com/gpu.shared": "1"}, 1),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}, 1),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50, "nvidia.com/priority": 1}, 1),
        ({"nvidia.com/mig-1g.10gb": 2}, 2),
        ({"nvidia.com/mig-1g.5gb+me": 1}, 1),
        ({"amd.com/gpu": "8"}, 8),
        ({"amd.com/cpx_nps4": "4"}, 4),
        ({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 50}, 2),
        ({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory-percentage": "50"}, 1),
        ({"volcano.sh/gpu-memory": "1024"}, 0),
        ({"nvidia.com/gpu": "1k"}, 1000),
        ({"nvidia.com/gpu": "2000m"}, 2),
        ({"cpu": "4", "memory": "8Gi", "rdma/hca": 1, "hugepages-2Mi": "1Gi"}, 0),
    ],
)
def test_devices_are_counted_and_shares_are_not(limits: dict[str, Any], count: int) -> None:
    found = read_devices({"resources": {"requests": dict(limits), "limits": limits}}, "container")
    assert (found.count, found.unknown) == (count, ())
    assert set(found.names) == {name for name in limits if name.startswith(("huawei", "nvidia", "amd", "volcano"))}


def test_container_without_resources_has_no_devices() -> None:
    assert read_devices({}, "container") == read_devices({"resources": {"limits": None}}, "c") == DeviceRequest()


def test_unknown_names_of_a_vendor_are_returned() -> None:
    found = read_devices(
        {"resources": {"limits": {"nvidia.com/gpu-time": "57446", "huawei.com/other": 1, "volcano.sh/vgpu-x": 1}}}, "c"
    )
    assert found == DeviceRequest(0, (), ("nvidia.com/gpu-time", "huawei.com/other", "volcano.sh/vgpu-x"))


@pytest.mark.parametrize("amount", ["0.5", "500m", "one", -1, None, ""])
def test_part_of_a_device_is_refused(amount: Any) -> None:
    with pytest.raises(ValidationError, match=r"job\.resources\[nvidia.com/gpu\]: must be a whole number of devices"):
        read_devices({"resources": {"limits": {"nvidia.com/gpu": amount}}}, "job")


def test_dropped_devices_stay_in_template() -> None:
    resources = {"limits": {"cpu": 2, "huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": 28672}}
    template = {
        "containers": [{"name": "mindspore", "resources": {**resources, "claims": [{"name": "npu"}]}}, {"name": "log"}],
        "initContainers": [{"name": "check", "resources": resources}],
        "resourceClaims": [{"name": "npu", "resourceClaimTemplateName": "one"}],
    }
    given = copy.deepcopy(template)
    pod = dict(template)
    drop_devices(pod)
    assert pod == {
        "containers": [{"name": "mindspore", "resources": {"limits": {"cpu": 2}}}, {"name": "log"}],
        "initContainers": [{"name": "check", "resources": {"limits": {"cpu": 2}}}],
    }
    assert template == given


SLICE = {"huawei.com/Ascend910B3": "1", "huawei.com/Ascend910B3-memory": "28672", "huawei.com/Ascend910B3-core": "50"}


def test_two_workers_on_slices_are_two_ranks() -> None:
    job = build_msjob("slices", command=["python", "train.py"], image="a", workers=2, resources=SLICE)
    (manifest,) = job.to("AscendJob")
    container = manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert {"name": "MS_WORKER_NUM", "value": "2"} in container["env"]
    assert container["resources"]["limits"] == SLICE
    scheduler = manifest["spec"]["replicaSpecs"]["Scheduler"]["template"]["spec"]["containers"][0]
    assert "huawei.com" not in str(scheduler["resources"])


def test_slice_by_cores_alone_gets_no_second_device() -> None:
    job = build_msjob("cores", command=["python", "a.py"], image="a", workers=1, resources={"huawei.com/npu-core": 8})
    (manifest,) = job.to("AscendJob")
    container = manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"huawei.com/npu-core": "8"}


def test_unknown_device_is_named_by_conversion() -> None:
    resources = {"nvidia.com/gpumem": "3031", "nvidia.com/gpu": 1, "nvidia.com/gpu-time": 7}
    job = build_msjob("gpu", command=["python", "train.py"], image="a", workers=2, resources=resources)
    exported = export_job(job, "MPIJob")
    assert exported.manifests[-1]["spec"]["slotsPerWorker"] == 1
    assert any("nvidia.com/gpu-time is counted as no device" in str(change) for change in exported.changes)


ONE_GPU, ONE_NPU = {"nvidia.com/gpu": "1"}, {"huawei.com/Ascend910": "1"}


@pytest.mark.parametrize(
    ("device", "resources", "variables", "expected"),
    [
        ("auto", {}, {}, {}),
        ("auto", {"cpu": "2"}, {}, {"cpu": "2"}),
        ("auto", {"gpu": 1}, {"KFP_MINDSPORE_POD_DEVICE": "GPU"}, ONE_GPU),
        ("auto", {"npu": 1}, {"KFP_MINDSPORE_POD_DEVICE": "Ascend"}, ONE_NPU),
        ("auto", SLICE, {"KFP_MINDSPORE_POD_DEVICE": "Ascend"}, SLICE),
        ("auto", {"volcano.sh/vgpu-number": 1}, {"KFP_MINDSPORE_POD_DEVICE": "GPU"}, {"volcano.sh/vgpu-number": "1"}),
        ("auto", {"nvidia.com/new": 1}, {"KFP_MINDSPORE_POD_DEVICE": "GPU"}, {"nvidia.com/new": "1"}),
        # MindSpore has no plugin for it.
        ("auto", {"amd.com/gpu": 1}, {}, {"amd.com/gpu": "1"}),
        ("CPU", {"cpu": "2"}, {"KFP_MINDSPORE_DEVICE": "CPU"}, {"cpu": "2"}),
        ("GPU", {"cpu": "2"}, {"KFP_MINDSPORE_DEVICE": "GPU"}, {"cpu": "2", **ONE_GPU}),
        ("GPU", {"nvidia.com/mig-1g.10gb": 1}, {"KFP_MINDSPORE_DEVICE": "GPU"}, {"nvidia.com/mig-1g.10gb": "1"}),
        ("Ascend", {}, {"KFP_MINDSPORE_DEVICE": "Ascend"}, ONE_NPU),
        ("Ascend", SLICE, {"KFP_MINDSPORE_DEVICE": "Ascend"}, SLICE),
    ],
)
def test_pods_have_resource_and_device(
    device: str, resources: dict[str, Any], variables: dict[str, str], expected: dict[str, str]
) -> None:
    job = build_msjob("job", command=["python", "a.py"], image="a", workers=2, resources=resources, device=device)
    container = job.get_replica_spec("Worker").container
    assert {item["name"]: item["value"] for item in container.get("env", [])} == variables
    assert container.get("resources", {}).get("limits", {}) == expected
    assert container.get("resources", {}).get("requests", {}) == expected


@pytest.mark.parametrize("device", ["CPU", "GPU"])
def test_device_of_other_resource_is_refused(device: str) -> None:
    container = {"name": "mindspore", "resources": {"limits": SLICE}}
    with pytest.raises(ValidationError) as caught:
        set_device(container, device)
    assert f"device: is {device}, and resources requests huawei.com/Ascend910B3, " in str(caught.value)


def test_own_variable_and_claims_are_kept() -> None:
    env = [{"name": "KFP_MINDSPORE_DEVICE", "value": "CPU"}]
    container: dict[str, Any] = {"name": "mindspore", "resources": {"claims": [{"name": "gpu"}]}, "env": env}
    set_device(container, "GPU")
    assert container == {"name": "mindspore", "resources": {"claims": [{"name": "gpu"}]}, "env": env}
