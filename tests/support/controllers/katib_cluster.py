"""Katib on a test cluster: its own manifests in pods, with MariaDB beside it."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.operator.install.apply import apply_objects
from tests.cluster.conftest import start
from tests.cluster.infrastructure.binaries import KATIB, get_binaries
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.katib_images import make_katib_archives, name_image
from tests.support.controllers.kserve_cluster import KUBEFLOW_VARIABLE
from tests.support.kube.operators import wait_for

EXPERIMENTS = Resource("kubeflow.org", "v1beta1", "experiments", "Experiment")
TRIALS = Resource("kubeflow.org", "v1beta1", "trials", "Trial")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
INJECTION = {"katib.kubeflow.org/metrics-collector-injection": "enabled"}
_NAMESPACE, _DATABASE = "kubeflow", "mariadb"
_PORT = 3306
_COMPONENTS = ("katib-db-manager", "katib-controller")


@contextlib.contextmanager
def run_katib(cluster: NodeCluster) -> Iterator[Cluster]:
    """Run Katib with the changes of docs/sweeps.md: MSJob among its trial resources, and a role for MSJobs."""
    if not os.environ.get(KUBEFLOW_VARIABLE):
        pytest.skip(f"the build of Katib is slow: run `make test-kubeflow`, which sets {KUBEFLOW_VARIABLE}")
    folder = Path(start(lambda: get_binaries(KATIB)))
    for archive in start(make_katib_archives).values():
        cluster.import_image(archive)
    api = Cluster(cluster.kubeconfig)
    password = secrets.token_hex(8)
    documents = [document for name in KATIB.files if name != "katib-config.yaml" for document in _read(folder / name)]
    hooks = [document for document in documents if document["kind"].endswith("WebhookConfiguration")]
    others = [_set_image(document) for document in documents if document not in hooks]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
    settings = [
        _build("ConfigMap", "katib-config", data={"katib-config.yaml": _write_configuration(folder)}),
        # The controller fills it, and reads it from a volume.
        _build("Secret", "katib-webhook-cert"),
        _build("Secret", "katib-mysql-secrets", stringData={"MYSQL_ROOT_PASSWORD": password}),
    ]
    (manager,) = (
        item for item in others if item["metadata"]["name"] == _COMPONENTS[0] and item["kind"] == "Deployment"
    )
    address = {"name": "KATIB_MYSQL_DB_HOST", "value": str(cluster.network.node)}
    manager["spec"]["template"]["spec"]["containers"][0]["env"].append(address)
    with _run_database(cluster, password):
        try:
            applied = [namespace, *settings, *others, *hooks, *read_roles()]
            list(apply_objects(applied, kubeconfig=str(cluster.kubeconfig)))
            for name in _COMPONENTS:
                wait_for(lambda name=name: _is_available(api, name), lambda name=name: explain(api, _NAMESPACE), 400)
            yield api
        finally:
            for item in hooks:
                with contextlib.suppress(NotFoundError):
                    api.delete(api.resolve_resource(item["apiVersion"], item["kind"]), item["metadata"]["name"])
            for name in _COMPONENTS:
                with contextlib.suppress(NotFoundError):
                    api.delete(DEPLOYMENTS, name, _NAMESPACE)


def read_roles() -> list[dict[str, Any]]:
    """Return the objects that docs/sweeps.md adds to Katib."""
    text = (ROOT / "docs" / "sweeps.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    (block,) = (block for block in blocks if "kind: ClusterRole\n" in block)
    return [document for document in yaml.safe_load_all(block) if document]


def explain(api: Cluster, namespace: str) -> str:
    """Return states and logs of a namespace's pods."""
    lines = []
    for pod in api.list(PODS, namespace):
        name = pod["metadata"]["name"]
        lines.append(f"{name}: {pod['status'].get('phase')} {str(pod['status'].get('containerStatuses'))[:800]}")
        for container in pod["spec"]["containers"]:
            try:
                lines.append(api.read_log(name, namespace, container=container["name"], last=20))
            except KfpMindSporeError as error:  # a container that has not started
                lines.append(str(error))
    return "\n".join(lines)


@contextlib.contextmanager
def _run_database(cluster: NodeCluster, password: str) -> Iterator[None]:
    directory = cluster.directory / _DATABASE
    data, init, socket = directory / "data", directory / "init.sql", directory / "socket"
    data.mkdir(parents=True)
    init.write_text(
        "CREATE DATABASE IF NOT EXISTS katib;\n"
        f"CREATE USER IF NOT EXISTS root@'%' IDENTIFIED BY '{password}';\nGRANT ALL ON *.* TO root@'%';\n"
    )
    options = ["--no-defaults", f"--datadir={data}"]
    subprocess.run(["mariadb-install-db", *options, "--user=root"], check=True, stdout=subprocess.DEVNULL)
    options += [
        f"--init-file={init}",
        f"--socket={socket}",
        f"--bind-address={cluster.network.node}",
        f"--port={_PORT}",
    ]
    cluster.daemons.start(_DATABASE, ["mariadbd", *options, "--user=root", "--innodb-buffer-pool-size=32M"])
    try:
        cluster.daemons.wait_ready(_DATABASE, socket.exists)
        yield
    finally:
        cluster.daemons.stop(_DATABASE)


def _write_configuration(folder: Path) -> str:
    configuration = yaml.safe_load((folder / "katib-config.yaml").read_text())
    configuration["init"]["controller"]["trialResources"].append("MSJob.v1.mindspore.gitee.com")
    runtime = configuration["runtime"]
    for collector in runtime["metricsCollectors"]:
        if collector["kind"] == "File":
            collector.update(image=name_image("file-metricscollector"), imagePullPolicy="IfNotPresent")
    for suggestion in runtime["suggestions"]:
        if suggestion["algorithmName"] == "random":
            suggestion.update(image=name_image("goptuna-suggestion"), imagePullPolicy="IfNotPresent")
    return yaml.safe_dump(configuration)


def _set_image(document: dict[str, Any]) -> dict[str, Any]:
    if document["kind"] == "Deployment":
        (container,) = document["spec"]["template"]["spec"]["containers"]
        container.update(image=name_image(document["metadata"]["name"]), imagePullPolicy="IfNotPresent")
    return document


def _is_available(api: Cluster, name: str) -> bool:
    return bool((api.get(DEPLOYMENTS, name, _NAMESPACE).get("status") or {}).get("availableReplicas"))


def _build(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": _NAMESPACE}, **fields}


def _read(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]
