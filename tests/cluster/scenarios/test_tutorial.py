"""docs/cluster-tutorial.md and csv-on-a-cluster.md: their commands run on a node as printed, in their order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from kfp_mindspore.inference.backends.kserve import SERVICES
from tests.cluster.conftest import start
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.paths import ROOT
from tests.cluster.infrastructure.prerequisites import UnavailableError
from tests.cluster.kserve_images import SERVER_IMAGE
from tests.support.controllers.kserve_cluster import KServe
from tests.support.kube.documented_commands import open_page
from tests.support.kube.pipeline_pods import PipelineRun
from tests.support.kube.step_pods import StepRunner
from tests.support.remote.object_store import ObjectStore
from tests.support.remote.pipelines_server import serve

TUTORIAL = ROOT / "docs" / "cluster-tutorial.md"
CSV = ROOT / "docs" / "csv-on-a-cluster.md"
# The test cluster has no API server of Kubeflow Pipelines, its store is no Service, and the image has its own tests.
REPLACED = (
    "export NAMESPACE=",
    "kubectl port-forward -n $NAMESPACE svc/ml-pipeline ",
    "kubectl port-forward -n $NAMESPACE svc/minio-service ",
    "export AWS_ENDPOINT_URL=",
    "export KFP_MINDSPORE_IMAGE=",
    "kfp-mindspore image build ",
)

pytestmark = pytest.mark.timeout(1800)


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
        with open_page(TUTORIAL, own_cluster, tmp_path, variables) as tutorial:
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
        with open_page(TUTORIAL, kserve.cluster, tmp_path, variables) as tutorial:
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


def write_sales(file: Path) -> None:
    """Write a table whose price a network of its columns predicts."""
    random = np.random.default_rng(0)
    rows = zip(
        random.integers(20, 60, 300), random.normal(3, 1, 300), random.choice(["Oslo", "Rome"], 300), strict=True
    )
    lines = [f"{age},{income:.2f},{city},{age + 10 * income + 20 * (city == 'Oslo'):.2f}" for age, income, city in rows]
    file.write_text("\n".join(["age,income,city,price", *lines]) + "\n")


def test_csv_becomes_service_of_rows(
    kserve: KServe, operator_image: str, artifact_store: ObjectStore, tmp_path: Path
) -> None:
    write_sales(tmp_path / "sales.csv")
    with kserve.make_namespace() as namespace, serve() as server:
        variables = {
            "OPERATOR_IMAGE": operator_image,
            "STEPS_IMAGE": PYTHON,
            "KFP_MINDSPORE_IMAGE": PYTHON,
            "SERVER_IMAGE": SERVER_IMAGE,
            "NAMESPACE": namespace,
            "KFP_ENDPOINT": server.url,
            "AWS_ENDPOINT_URL": artifact_store.url,
        }
        for document in artifact_store.build_kfp_configuration():
            kserve.api.apply({**document, "metadata": {**document["metadata"], "namespace": namespace}})
        runner = StepRunner(kserve.cluster, namespace, kserve.packages, ())
        with (
            open_page(TUTORIAL, kserve.cluster, tmp_path, variables) as tutorial,
            open_page(CSV, kserve.cluster, tmp_path, variables, replaced=REPLACED) as page,
        ):
            # What an administrator has set up.
            tutorial("The operator")
            kserve.api.apply(kserve.build_runtime())
            page("The file", "The image", "Rights", "The run")
            (submitted,) = server.runs.values()
            package = tmp_path / "submitted.yaml"
            package.write_text(yaml.safe_dump(submitted.pipeline_spec))
            run = PipelineRun(runner, package, artifact_store, kserve.cluster.make_volume(f"{namespace}-csv"))
            # A server starts slowly beside other pods on two cores.
            changes = {"deploy-kserve": {"wait_seconds": 600}}
            outputs = run.run(submitted.runtime_config.parameters, changes)
            assert outputs["deploy-kserve"]["deployed"], outputs["deploy-kserve"]["verdict"]
            (prediction,) = json.loads(page("A prediction").splitlines()[-1])["predictions"]
            assert abs(prediction - (41 + 32 + 20)) < 20, prediction
            kserve.api.delete(SERVICES, "sales", namespace)
