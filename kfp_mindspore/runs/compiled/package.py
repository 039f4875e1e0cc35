"""Compiled pipelines as packages for a Kubeflow Pipelines server."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kfp_mindspore.errors import UserError
from kfp_mindspore.runs.compiled.image import list_placeholders
from kfp_mindspore.runs.compiled.spec import PipelineSpec, dump_spec, get_pipeline_name, parse_documents, parse_spec

WORKSPACE_HINT = (
    'Set dsl.WorkspaceConfig(size=…, kubernetes=dsl.KubernetesWorkspaceConfig({"accessModes": ["ReadWriteMany"]})), '
    "unless the server's configuration has a default, Workspace.VolumeClaimTemplateSpec."
)


def check_package(text: str) -> PipelineSpec:
    """Parse a compiled pipeline and check that all steps have images.

    Raises:
        UserError: The text is not a compiled pipeline, or a step has a placeholder image.
    """
    spec = parse_spec(text)
    placeholders = list_placeholders(spec)
    if placeholders:
        raise UserError(
            f"{get_pipeline_name(spec)}: its steps have no image, only the placeholder {placeholders[0]}",
            hint="Set an image with kfp-mindspore installed: --image, or KFP_MINDSPORE_IMAGE.",
        )
    return spec


def get_workspace_error(text: str) -> str:
    """Return why Kubeflow Pipelines refuses a compiled pipeline's workspace; empty without a reason.

    Its administrator can set access modes for all workspaces, which no client can read.

    Args:
        text: A compiled pipeline: the pipeline spec and, after it, the platform spec.
    """
    for document in parse_documents(text)[1:]:
        configuration = document.get("platforms", {}).get("kubernetes", {}).get("pipelineConfig", {})
        workspace = configuration.get("workspace")
        if workspace and not workspace.get("kubernetes", {}).get("pvcSpecPatch", {}).get("accessModes"):
            # KFP 2.17's API server answers 500 without modes in either.
            return "workspace: pvcSpecPatch: accessModes: is missing, without which the server makes no claim"
    return ""


def disable_caching(text: str) -> str:
    """Return a compiled pipeline with caching disabled for each step, including those in conditions and loops.

    Args:
        text: A compiled pipeline; documents after the first are not changed.
    """
    spec, *others = parse_documents(text)
    for component in (spec["root"], *spec.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            task["cachingOptions"] = {}
    return dump_spec(spec, *others)


@contextlib.contextmanager
def write_package(text: str) -> Iterator[str]:
    """Write a compiled pipeline to a temporary file for the block, and return the path."""
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-") as directory:
        file = Path(directory, "pipeline.yaml")
        file.write_text(text)
        yield str(file)
