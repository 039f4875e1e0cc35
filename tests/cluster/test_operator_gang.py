"""Gang schedulers on a real API server: their PodGroups come first, and pods only when those are admitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.operator.install.apply import apply_objects
from kfp_mindspore.operator.options import get_pod_groups
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.support.kube.operators import SECONDS, Jobs, OperatorProcess, install_definition


def _define(group: str, version: str) -> dict[str, Any]:
    """Return a definition of PodGroups without validation: these tests use the names only."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"},
            "scope": "Namespaced",
            "versions": [{**served, "subresources": {"status": {}}}],
        },
    }


@pytest.mark.parametrize("scheduler", ["volcano", "scheduler-plugins"])
def test_pods_wait_for_pod_group(api_server: ControlPlane, api_namespace: str, tmp_path: Path, scheduler: Any) -> None:
    groups = get_pod_groups(scheduler)
    assert groups is not None
    list(apply_objects([_define(groups.group, groups.version)], kubeconfig=str(api_server.kubeconfig)))
    install_definition(api_server.kubeconfig)
    jobs = Jobs(api_server.kubeconfig, api_namespace)
    flags = ("--namespace", api_namespace, "--gang-scheduler", scheduler)
    with OperatorProcess(api_server.kubeconfig, tmp_path / "log", *flags):
        jobs.create("gang", workers=2)
        jobs.wait(name="gang", condition="Created")
        for found in jobs.cluster.watch(groups, api_namespace, timeout=60):
            if "gang" in found:
                assert found["gang"]["spec"]["minMember"] == 3
                break
        if scheduler == "volcano":
            assert jobs.pods("gang") == {}
            jobs.cluster.patch(groups, "gang", api_namespace, {"status": {"phase": "Inqueue"}}, subresource="status")
        pods = jobs.launch("gang", 3)
        assert {pod["spec"]["schedulerName"] for pod in pods.values()} == {
            "volcano" if scheduler == "volcano" else "scheduler-plugins-scheduler"
        }
        jobs.end("gang-worker-0", 0)
        jobs.wait("gang", "Succeeded")
        jobs.wait_gone("gang", groups)


def test_missing_gang_scheduler_is_reported(start_api_server: Callable[..., ControlPlane], tmp_path: Path) -> None:
    server = start_api_server()
    install_definition(server.kubeconfig)
    process = OperatorProcess(server.kubeconfig, tmp_path / "log", "--gang-scheduler", "volcano")
    process.start(wait=False)
    assert process.process is not None
    assert process.process.wait(SECONDS) == 1
    assert "scheduling.volcano.sh/v1beta1 is not installed" in process.read_log()
