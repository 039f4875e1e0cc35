"""CustomResourceDefinitions as their projects publish them, in the folder KFP_MINDSPORE_CRDS."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("KFP_MINDSPORE_CRDS", Path(__file__).parents[4] / "shared" / "crds"))
# By kind; the first generation of MSJob has no published definition.
NAMES = {
    "AscendJob": "ascendjobs.mindxdl.gitee.com",
    "ClusterServingRuntime": "clusterservingruntimes.serving.kserve.io",
    "ClusterTrainingRuntime": "clustertrainingruntimes.trainer.kubeflow.org",
    "InferenceGraph": "inferencegraphs.serving.kserve.io",
    "InferenceService": "inferenceservices.serving.kserve.io",
    "Job": "jobs.batch.volcano.sh",
    "LLMInferenceService": "llminferenceservices.serving.kserve.io",
    "LLMInferenceServiceConfig": "llminferenceserviceconfigs.serving.kserve.io",
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


def read_schema(kind: str, version: str) -> Any:
    """Return a kind's schema, closed: the API server would drop a field that it does not name."""
    versions = {entry["name"]: entry for entry in read_definition(kind)["versions"]}
    return _close(versions[version]["schema"]["openAPIV3Schema"])


def _close(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_close(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _close(entry) for name, entry in schema.items()}
    if isinstance(closed.get("properties"), dict) and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    if closed.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed
