"""The parameter `storage`, and a check in compiled pipelines."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.names import SUBDOMAIN
from kfp_mindspore.settings import JOB_OPTIONS_VARIABLE

ARTIFACTS, WORKSPACE, CLAIM = "artifacts", "workspace", "claim"
# KFP's own mount path and placeholder for the workspace.
WORKSPACE_DIR, _WORKSPACE_PLACEHOLDER = "/kfp-workspace", "{{$.workspace_path}}"
_CLAIM_PATTERN = re.compile(rf"claim:(?P<claim>{SUBDOMAIN})(/(?P<path>[^/$][^$]*))?")
_LAUNCHERS = (
    "kfp_mindspore.steps.launch.train",
    "kfp_mindspore.steps.launch.sweep",
    "kfp_mindspore.steps.launch.function",
    "kfp_mindspore.steps.launch.ray_job",
)
_DECORATOR_OPTIONS = re.compile(r"^\w+ = launch_function\(\w+, (?P<options>'.*')\)$", re.MULTILINE)


@dataclass(frozen=True)
class StorageSpec:
    """A parsed parameter `storage`.

    Args:
        kind: ARTIFACTS, WORKSPACE or CLAIM.
        claim: The PersistentVolumeClaim's name; empty unless `kind` is CLAIM.
        path: Directory in the workspace or claim; empty for the root.
    """

    kind: str = ARTIFACTS
    claim: str = ""
    path: str = ""


def parse_storage(text: str) -> StorageSpec:
    """Parse the parameter `storage`; an empty text is `artifacts`.

    Raises:
        ValidationError: It has another form.
    """
    text = text or ARTIFACTS
    for head in (_WORKSPACE_PLACEHOLDER, WORKSPACE_DIR, WORKSPACE):
        if text == head or text.startswith(f"{head}/"):
            path = text[len(head) :].strip("/")
            if ".." not in path.split("/"):
                return StorageSpec(WORKSPACE, path=path)
    if text == ARTIFACTS:
        return StorageSpec()
    found = _CLAIM_PATTERN.fullmatch(text)
    if found is None or ".." in (found["path"] or "").split("/"):
        raise ValidationError([f"storage: must be artifacts, workspace or claim:NAME/PATH, got {text!r}"])
    return StorageSpec(CLAIM, found["claim"], (found["path"] or "").strip("/"))


def check_pipeline(text: str) -> None:
    """Check the storage for a compiled pipeline's jobs.

    Args:
        text: A compiled pipeline.

    Raises:
        ValidationError: See `list_storage_errors`.
    """
    if errors := list_storage_errors(text):
        raise ValidationError(errors)


def list_storage_errors(text: str) -> list[str]:
    """Return what is wrong with the storage for a compiled pipeline's jobs, one sentence per task.

    Values that are known at run time only are checked by the step, before it submits the job.

    Args:
        text: A compiled pipeline: the pipeline spec and, after it, the platform spec with the workspace.
    """
    import yaml

    documents = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    spec, platform, *_ = [*(document for document in documents if document), {}]
    pipeline = _dig(platform, "platforms", "kubernetes", "pipelineConfig")
    has_workspace = bool(pipeline.get("workspace"))
    errors = []
    for name, storage in _list_storages(spec):
        try:
            kind = parse_storage(storage).kind
        except ValidationError as error:
            errors.append(f"{name}: {error.errors[0]}")
            continue
        if kind == WORKSPACE and not has_workspace:
            errors.append(f"{name}: storage: workspace: needs dsl.PipelineConfig(workspace=…) on the pipeline")
    return errors


def _list_storages(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the constant storage for each task that launches a job."""
    components = spec.get("components", {})
    executors = _dig(spec, "deploymentSpec", "executors")
    dags = [spec.get("root", {}), *components.values()]
    for dag in dags:
        for name, task in _dig(dag, "dag", "tasks").items():
            component = components.get(_dig(task, "componentRef").get("name"), {})
            container = _dig(executors, component.get("executorLabel") or "", "container")
            source = "\n".join(container.get("command", []))
            if not any(module in source for module in _LAUNCHERS):
                continue
            value = _read_setter(container) or _read_decorator(source)
            if value is None:
                entry = _dig(task, "inputs", "parameters", "storage")
                value = _dig(entry, "runtimeValue").get("constant") if entry else ""
            if isinstance(value, str) and "{{$.inputs" not in value:
                yield name, value


def _read_setter(container: Mapping[str, Any]) -> str | None:
    for entry in container.get("env", []):
        if entry.get("name") == JOB_OPTIONS_VARIABLE:
            return _get_storage(entry.get("value") or "{}")
    return None


def _read_decorator(source: str) -> str | None:
    found = _DECORATOR_OPTIONS.search(source)
    return _get_storage(ast.literal_eval(found["options"])) if found else None


def _get_storage(options: str) -> str | None:
    value: str | None = json.loads(options).get("storage")
    return value


def _dig(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        document = document.get(key) or {}
    return document
