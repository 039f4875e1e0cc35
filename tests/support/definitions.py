"""CustomResourceDefinitions as their projects publish them, in the folder KFP_MINDSPORE_CRDS."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("KFP_MINDSPORE_CRDS", Path(__file__).parents[3] / "shared" / "crds"))
# By kind; the first generation of MSJob has no published definition.
NAMES = {
    "AscendJob": "ascendjobs.mindxdl.gitee.com",
    "ClusterServingRuntime": "clusterservingruntimes.serving.kserve.io",
    "ClusterTrainingRuntime": "clustertrainingruntimes.trainer.kubeflow.org",
    "Job": "jobs.batch.volcano.sh",
    "MPIJob": "mpijobs.kubeflow.org",
    "MSJob": "msjobs.mindspore.gitee.com",
    "RayJob": "rayjobs.ray.io",
    "ServingRuntime": "servingruntimes.serving.kserve.io",
    "TrainJob": "trainjobs.trainer.kubeflow.org",
}


def read_definition(kind: str) -> dict[str, Any]:
    """Return the spec of a kind's definition; skip the test where it is missing."""
    file = FOLDER / f"{NAMES[kind]}.json"
    if not file.exists():
        pytest.skip(f"{file.name} is not there: KFP_MINDSPORE_CRDS names the folder of published definitions")
    spec: dict[str, Any] = json.loads(file.read_text())["spec"]
    return spec
