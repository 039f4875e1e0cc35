"""The harness itself: API servers without nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import AuthorizationV1Api, BatchV1Api, CoreV1Api, RbacAuthorizationV1Api, VersionApi
from kubernetes.client.exceptions import ApiException

from kfp_mindspore.local.process import ProcessIdentity
from tests.cluster.infrastructure.api_server import ApiServer, ControlPlane
from tests.cluster.infrastructure.instances import remove_leftovers
from tests.cluster.infrastructure.kubernetes_versions import VERSION_VARIABLE, is_emulated
from tests.cluster.infrastructure.paths import ROOT
from tests.support.training.jobs import eventually

_JOB = {
    "metadata": {"name": "three"},
    "spec": {
        "completions": 3,
        "parallelism": 3,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "none.test/none", "command": ["true"]}],
            }
        },
    },
}


def test_server_has_selected_version(api_server: ControlPlane) -> None:
    with api_server.client() as client:
        found = json.loads(VersionApi(client).get_code(_preload_content=False).data)
    version = os.environ.get(VERSION_VARIABLE) or "1.34.4"
    emulated = f"{found.get('emulationMajor')}.{found.get('emulationMinor')}"
    assert version == emulated if is_emulated(version) else f"v{version}" == found["gitVersion"]


def test_controllers_create_pods(api_server: ControlPlane, api_namespace: str) -> None:
    with api_server.client() as client:
        BatchV1Api(client).create_namespaced_job(api_namespace, _JOB)
        pods = eventually(lambda: _with_length(3, CoreV1Api(client).list_namespaced_pod(api_namespace).items))
    assert {pod.status.phase for pod in pods} == {"Pending"}


def test_rbac(api_server: ControlPlane, api_namespace: str) -> None:
    kubeconfig = api_server.write_kubeconfig("reader@test", ["readers"])
    with api_server.client(kubeconfig) as reader, api_server.client() as admin:
        with pytest.raises(ApiException) as denied:
            CoreV1Api(reader).list_namespaced_pod(api_namespace)
        assert denied.value.status == 403
        RbacAuthorizationV1Api(admin).create_namespaced_role_binding(
            api_namespace,
            {
                "metadata": {"name": "readers"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "Group", "name": "readers", "apiGroup": "rbac.authorization.k8s.io"}],
            },
        )
        eventually(lambda: _is_allowed(reader, api_namespace, "list"))
        assert CoreV1Api(reader).list_namespaced_pod(api_namespace).items == []
        assert not _is_allowed(reader, api_namespace, "create")


def test_two_api_servers_run_concurrently(start_api_server: Callable[..., ApiServer]) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: start_api_server(), range(2))
    assert first.url != second.url
    with first.client() as one, second.client() as other:
        CoreV1Api(one).create_namespaced_config_map("default", {"metadata": {"name": "mine"}})
        names = {item.metadata.name for item in CoreV1Api(other).list_namespaced_config_map("default").items}
    assert "mine" not in names


def test_restart_keeps_stored_objects(start_api_server: Callable[..., ApiServer]) -> None:
    server = start_api_server()
    with server.client() as client:
        CoreV1Api(client).create_namespaced_config_map("default", {"metadata": {"name": "mine"}})
        with server.stop_api_server():
            assert not server.is_ready()
        assert CoreV1Api(client).read_namespaced_config_map("mine", "default").metadata.name == "mine"


def test_paused_etcd_blocks_writes(start_api_server: Callable[..., ApiServer]) -> None:
    server = start_api_server()
    with server.client() as client:
        with server.pause_etcd(), pytest.raises(Exception, match=r"(?i)timed? ?out"):
            CoreV1Api(client).create_namespaced_config_map(
                "default", {"metadata": {"name": "mine"}}, _request_timeout=2
            )
        eventually(server.is_ready)


def test_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    script = "import sys, time; from tests.cluster.infrastructure.api_server import ApiServer\n"
    script += "server = ApiServer(); print(server.directory, flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    directory = Path(owner.stdout.readline().strip())
    assert directory.name.startswith("api-")
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*") if str(directory) in _read_command(path)]
    assert len(pids) > 3
    identities = [ProcessIdentity.of(pid) for pid in pids]
    assert directory.name not in remove_leftovers()

    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    eventually(lambda: not directory.exists())
    assert not any(identity.is_alive() for identity in identities if identity)


def _with_length(length: int, items: list[Any]) -> list[Any]:
    return items if len(items) == length else []


def _is_allowed(client: Any, namespace: str, verb: str) -> bool:
    review = {"spec": {"resourceAttributes": {"namespace": namespace, "verb": verb, "resource": "pods"}}}
    return bool(AuthorizationV1Api(client).create_self_subject_access_review(review).status.allowed)


def _read_command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
