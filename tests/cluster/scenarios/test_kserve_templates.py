"""The project of each template of `init`: compiled, its steps run in pods, its model served by KServe."""

from __future__ import annotations

import gzip
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.cli.init import TEMPLATES, write_project
from kfp_mindspore.inference.backends.kserve import SERVICES
from kfp_mindspore.runs.compiled.sources import compile_text
from tests.cluster.infrastructure.images import PYTHON
from tests.support.controllers.kserve_cluster import KServe
from tests.support.kube.operators import OperatorProcess
from tests.support.kube.pipeline_pods import PipelineRun
from tests.support.kube.step_pods import StepRunner
from tests.support.remote.object_store import BUCKET, ObjectStore

pytestmark = pytest.mark.timeout(1800)

NAME = "my-project"
READY_SECONDS = 600
ARGUMENTS: dict[str, dict[str, Any]] = {
    "classification": {"epochs": 2, "threshold": 0.0},
    "detection": {"epochs": 1, "threshold": 0.0},
    "mindcv": {"network": "mobilenet_v1_025", "image_size": 32, "epochs": 1, "threshold": 0.0},
    "regression": {"epochs": 2, "threshold": 1e6},
    "sequence": {"epochs": 1, "threshold": 0.0},
    "text-classification": {"epochs": 1, "threshold": 0.0},
    "two-inputs": {"epochs": 2, "threshold": 0.0},
    "vit": {"dataset": f"s3://{BUCKET}/own/images", "epochs": 1, "threshold": 0.0},
    "wide-deep": {"epochs": 1, "threshold": 0.0},
}


def put_own_data(store: ObjectStore) -> None:
    """Write a few images as Fashion-MNIST has them, whose package no image of pods has."""
    random = np.random.default_rng(0)
    for name, count in (("train", 160), ("t10k", 40)):
        images = random.integers(0, 256, (count, 28, 28), np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", (np.arange(count) % 10).astype(np.uint8))):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            store.put(f"own/images/{name}-{kind}-ubyte.gz", gzip.compress(header + array.tobytes()))


@pytest.fixture(scope="module")
def world(
    kserve: KServe, definition: None, artifact_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StepRunner]:
    """Return what runs steps in a namespace with KServe, an operator and KFP's configuration of the store."""
    put_own_data(artifact_store)
    log = tmp_path_factory.mktemp("operator") / "log"
    with (
        kserve.make_namespace() as namespace,
        OperatorProcess(kserve.cluster.kubeconfig, log, "-n", namespace),
    ):
        kserve.add_store(namespace, artifact_store)
        for document in artifact_store.build_kfp_configuration():
            kserve.api.apply({**document, "metadata": {**document["metadata"], "namespace": namespace}})
        yield StepRunner(kserve.cluster, namespace, kserve.packages, ("run", "training", "deployment"))


@pytest.fixture
def compile_template(world: StepRunner, tmp_path: Path) -> Callable[[str], tuple[StepRunner, Path]]:
    """Return a function that writes and compiles a project, and returns it with a runner whose pods import it."""

    def compile_project(template: str) -> tuple[StepRunner, Path]:
        project = tmp_path / NAME
        write_project(project, template)
        package = tmp_path / "pipeline.yaml"
        package.write_text(compile_text(str(project / "pipeline.py"), PYTHON))
        packages = replace(world.packages, project=world.cluster.make_volume(f"{world.namespace}-{template}"))
        shutil.copytree(world.packages.project, packages.project, symlinks=True, dirs_exist_ok=True)
        for file in ("network.py", "train.py"):
            shutil.copy(project / file, packages.project)
        return StepRunner(world.cluster, world.namespace, packages, ()), package

    return compile_project


@pytest.mark.parametrize("template", TEMPLATES)
def test_project_of_template_is_served(
    template: str,
    world: StepRunner,
    artifact_store: ObjectStore,
    compile_template: Callable[[str], tuple[StepRunner, Path]],
) -> None:
    runner, package = compile_template(template)
    run = PipelineRun(
        runner, package, artifact_store, world.cluster.make_volume(f"{world.namespace}-{template}-artifacts")
    )
    service = f"{NAME}-{template}"
    outputs = run.run(
        {**ARGUMENTS[template], "service_name": service, "service_account": "models", "namespace": world.namespace},
        # A server starts slowly beside other pods on two cores.
        {"deploy-kserve": {"wait_seconds": READY_SECONDS}},
    )
    deployed = outputs["deploy-kserve"]
    assert deployed["deployed"], deployed["verdict"]
    assert deployed["url"] == f"http://{service}-predictor.{world.namespace}.svc.cluster.local"
    world.api.delete(SERVICES, service, world.namespace)
