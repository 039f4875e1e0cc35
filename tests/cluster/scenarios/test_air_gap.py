"""docs/air-gapped.md and the cluster tutorial in a network without a route: wheels, a registry and a release's images.

`make test-airgap` makes the release and runs these tests in a network namespace of their own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore import __version__
from kfp_mindspore.inference.backends.kserve import SERVICES
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PODS
from tests.cluster.conftest import start
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.node import ctr
from tests.cluster.infrastructure.packages import ImagePackages
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.release_images import CLIENT_EXTRAS, get_release
from tests.support.controllers.kserve_cluster import run_kserve
from tests.support.kube.documented_commands import list_commands, open_page, run_commands
from tests.support.kube.operators import wait_for
from tests.support.kube.pipeline_pods import PipelineRun
from tests.support.kube.step_pods import StepRunner
from tests.support.remote.object_store import ObjectStore

AIRGAP_VARIABLE = "KFP_MINDSPORE_TEST_AIRGAP"
AIR_GAPPED = ROOT / "docs" / "air-gapped.md"
TUTORIAL = ROOT / "docs" / "cluster-tutorial.md"
# Of public name servers.
PUBLIC = ("1.1.1.1", "8.8.8.8", "2606:4700:4700::1111")
# A pull of 1.4 GB beside other pods on two cores.
SECONDS = 600.0

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="session", autouse=True)
def closed_network() -> None:
    """Require a network without a route to anything outside."""
    if not os.environ.get(AIRGAP_VARIABLE):
        pytest.skip(f"needs a network namespace and a release: run `make test-airgap`, which sets {AIRGAP_VARIABLE}")
    for address in PUBLIC:
        with pytest.raises(OSError, match="unreachable"):
            socket.create_connection((address, 443), timeout=10)
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("pypi.org", 443)


@pytest.fixture(scope="session")
def carried(closed_network: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of what is carried in, with the virtual environment `venv` made of its wheels."""
    release = start(get_release)
    folder = tmp_path_factory.mktemp("carried")
    for name in ("dist", "release.pub", "wheels"):
        (folder / name).symlink_to(release / name)
    (folder / "release").symlink_to(ROOT / "release")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run_commands(list_commands(AIR_GAPPED, "The client"), folder, {"PATH": path})
    return folder


@pytest.fixture(scope="session")
def images(carried: Path, registry: str) -> dict[str, str]:
    """Return names by digest of the release's images in the registry, by image."""
    lines = [f"{line} --insecure {registry}" for line in list_commands(AIR_GAPPED, "The images")]
    variables = {"PATH": f"{carried}/venv/bin:{os.environ['PATH']}", "REGISTRY": f"{registry}/team"}
    printed = run_commands(lines, carried, variables).split()
    return {reference.partition("@")[0].rpartition("/")[2]: reference for reference in printed}


def list_variables(images: dict[str, str]) -> dict[str, str]:
    """Return the tutorial's variables of images."""
    return {f"{name.upper()}_IMAGE": reference for name, reference in images.items()}


def test_missing_wheel_is_named(carried: Path, tmp_path: Path) -> None:
    for wheel in (carried / "wheels").iterdir():
        if not wheel.name.startswith("aiohttp-"):
            (tmp_path / wheel.name).symlink_to(wheel)
    words = ["install", "--dry-run", "--ignore-installed", "--no-index", "--find-links", str(tmp_path)]
    done = subprocess.run(
        [f"{carried}/venv/bin/pip", *words, f"kfp-mindspore[{','.join(CLIENT_EXTRAS)}]"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "No matching distribution found for aiohttp" in done.stderr


@pytest.mark.parametrize("image", ["operator", "server", "steps"])
def test_containerd_runs_image(image: str, images: dict[str, str], own_cluster: NodeCluster, namespace: str) -> None:
    api = Cluster(own_cluster.kubeconfig)
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
    container = {
        "name": "main",
        "image": images[image],
        "command": ["kfp-mindspore", "--version"],
        "securityContext": security,
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": image}, "spec": spec}, namespace)

    def get_status() -> dict[str, object]:
        return dict(api.get(PODS, image, namespace)["status"])

    wait_for(lambda: get_status().get("phase") in ("Succeeded", "Failed"), lambda: json.dumps(get_status()), SECONDS)
    assert get_status()["phase"] == "Succeeded", json.dumps(get_status())
    assert api.read_log(image, namespace).startswith(f"kfp-mindspore {__version__} ")
    assert images[image] in ctr(own_cluster.namespaces, "images", "list", "--quiet").split()


def test_operator_runs_first_job(
    images: dict[str, str], carried: Path, own_cluster: NodeCluster, namespace: str, tmp_path: Path
) -> None:
    variables = {**list_variables(images), "NAMESPACE": namespace}
    with open_page(TUTORIAL, own_cluster, tmp_path, variables, programs=carried / "venv" / "bin") as tutorial:
        output = tutorial("The operator")
    assert "successfully rolled out" in output
    assert "hello from a pod" in output
    assert "Succeeded" in output


def test_tutorial_ends_with_prediction(
    images: dict[str, str], carried: Path, own_cluster: NodeCluster, artifact_store: ObjectStore, tmp_path: Path
) -> None:
    packages = ImagePackages()
    with run_kserve(own_cluster, packages) as kserve, kserve.make_namespace() as namespace:
        variables = {**list_variables(images), "NAMESPACE": namespace}
        for document in artifact_store.build_kfp_configuration():
            kserve.api.apply({**document, "metadata": {**document["metadata"], "namespace": namespace}})
        runner = StepRunner(own_cluster, namespace, packages, (), image="")
        programs = carried / "venv" / "bin"
        with open_page(TUTORIAL, own_cluster, tmp_path, variables, programs=programs) as tutorial:
            tutorial("The operator", "KServe's runtime", "The pipeline")
            artifacts = own_cluster.make_volume(f"{namespace}-tutorial")
            run = PipelineRun(runner, tmp_path / "pipeline.yaml", artifact_store, artifacts)
            arguments = {"namespace": namespace, "service_account": "model-reader"}
            # A server starts slowly beside other pods on two cores.
            outputs = run.run(arguments, {"deploy-kserve": {"wait_seconds": 600}})
            assert outputs["deploy-kserve"]["deployed"], outputs["deploy-kserve"]["verdict"]
            answer = tutorial("A prediction").splitlines()[-1]
            assert json.loads(answer)["predictions"][0]["label"] == "0"
            kserve.api.delete(SERVICES, "digits", namespace)
