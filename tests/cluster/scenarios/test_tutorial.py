"""docs/cluster-tutorial.md: its commands run on a node as they are printed, in their order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kfp_mindspore.inference.backends.kserve import SERVICES
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import NotFoundError
from kfp_mindspore.kube.resources import NAMESPACES
from tests.cluster.conftest import start
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.infrastructure.prerequisites import UnavailableError
from tests.cluster.kserve_images import SERVER_IMAGE
from tests.support.kserve_cluster import KServe
from tests.support.object_store import ObjectStore
from tests.support.pipeline_pods import PipelineRun
from tests.support.step_pods import StepRunner

PAGE = ROOT / "docs" / "cluster-tutorial.md"
SKIPPED = "# not executed"
SYSTEM = "msjob-system"
SECONDS = 900.0
# A port-forward accepts connections once it has connected to the pod.
WAIT_FORWARDED = " &\nuntil curl -sf -o /dev/null http://127.0.0.1:8080/v2/health/live; do sleep 0.2; done"

Tutorial = Callable[[str], str]

pytestmark = pytest.mark.timeout(1800)


def list_commands(section: str) -> list[str]:
    """Return the commands of a section that are not marked."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if SKIPPED not in line]


@contextlib.contextmanager
def open_tutorial(cluster: NodeCluster, directory: Path, variables: Mapping[str, str]) -> Iterator[Tutorial]:
    """Return a function that runs a section and returns its output; remove the operator afterwards."""
    environment = {
        **os.environ,
        **variables,
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(section: str) -> str:
        commands = "\n".join(re.sub(r" &$", WAIT_FORWARDED, line) for line in list_commands(section))
        script = f"set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{commands}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=directory, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    try:
        yield run
    finally:
        with contextlib.suppress(NotFoundError):
            Cluster(cluster.kubeconfig).delete(NAMESPACES, SYSTEM)


@pytest.fixture(autouse=True)
def kubectl() -> None:
    """Require kubectl."""

    def check() -> None:
        if shutil.which("kubectl") is None:
            raise UnavailableError("kubectl is not on the PATH, which the tutorial uses: install it")

    start(check)


def test_operator_runs_first_job(own_cluster: NodeCluster, operator_image: str, tmp_path: Path) -> None:
    with own_cluster.make_namespace("tutorial") as namespace:
        variables = {"OPERATOR_IMAGE": operator_image, "STEPS_IMAGE": PYTHON, "NAMESPACE": namespace}
        with open_tutorial(own_cluster, tmp_path, variables) as tutorial:
            output = tutorial("The operator")
    assert "successfully rolled out" in output
    assert "hello from a pod" in output
    assert "Succeeded" in output


def test_pipeline_ends_with_prediction(
    kserve: KServe, operator_image: str, artifact_store: ObjectStore, tmp_path: Path
) -> None:
    with kserve.make_namespace() as namespace:
        variables = {
            "OPERATOR_IMAGE": operator_image,
            "STEPS_IMAGE": PYTHON,
            "SERVER_IMAGE": SERVER_IMAGE,
            "NAMESPACE": namespace,
        }
        for document in artifact_store.build_kfp_configuration():
            kserve.api.apply({**document, "metadata": {**document["metadata"], "namespace": namespace}})
        # Kubeflow Pipelines' own account exists before `pipeline setup` gives it rights.
        runner = StepRunner(kserve.cluster, namespace, kserve.packages, ())
        with open_tutorial(kserve.cluster, tmp_path, variables) as tutorial:
            tutorial("The operator")
            tutorial("KServe's runtime")
            # The node's image of the server has no packages; they come from claims.
            kserve.api.apply(kserve.build_runtime())
            tutorial("The pipeline")
            artifacts = kserve.cluster.make_volume(f"{namespace}-tutorial")
            run = PipelineRun(runner, tmp_path / "pipeline.yaml", artifact_store, artifacts)
            arguments = {"namespace": namespace, "service_account": "model-reader"}
            # A server starts slowly beside other pods on two cores.
            outputs = run.run(arguments, {"deploy-kserve": {"wait_seconds": 600}})
            assert outputs["deploy-kserve"]["deployed"], outputs["deploy-kserve"]["verdict"]
            answer = tutorial("A prediction").splitlines()[-1]
            assert json.loads(answer)["predictions"][0]["label"] == "0"
            kserve.api.delete(SERVICES, "digits", namespace)
