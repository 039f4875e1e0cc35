"""Conversion from other job kinds and generations to MSJobs, and from MSJobs to other kinds, file by file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.api.names import API_VERSION, FIRST_API_VERSION, KIND
from kfp_mindspore.msjob.kinds import KINDS, export_job, import_job, resolve_kind
from kfp_mindspore.msjob.kinds.changes import Change
from kfp_mindspore.msjob.kinds.first_generation import convert_first_generation, name_job, show
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.yaml_document import parse_yaml_documents

# Objects that a file may hold beside its jobs; other job kinds have their own groups.
_KEPT_GROUPS = ("", "rbac.authorization.k8s.io", "storage.k8s.io", "networking.k8s.io", "scheduling.k8s.io")


@dataclass(frozen=True)
class Conversion:
    """A converted job.

    Attributes:
        job: The job, valid.
        changes: Changes in document order; empty for a current-generation document.
    """

    job: MSJob
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class FileConversion:
    """A converted file.

    Attributes:
        documents: The file's documents; those that are no jobs are unchanged.
        jobs: The jobs, as MSJobs.
        changes: Changes in file order; empty when every document is as it was.
    """

    documents: tuple[dict[str, Any], ...]
    jobs: tuple[MSJob, ...]
    changes: tuple[Change, ...]


def convert_msjob(document: Mapping[str, Any], others: list[dict[str, Any]] | None = None) -> Conversion:
    """Convert a first-generation job or another kind; a current-generation job is only validated.

    Args:
        document: As parsed from YAML; it is not modified.
        others: The other documents in its file; documents that the job refers to are removed.

    Raises:
        ValidationError: It is no job, or cannot be converted; the message names the fields.
    """
    names = document.get("apiVersion"), document.get("kind")
    if names == (API_VERSION, KIND):
        return Conversion(MSJob.from_dict(document), ())
    if names == (FIRST_API_VERSION, KIND):
        converted, changes = convert_first_generation(document)
    elif resolve_kind(document) is not None:
        converted, changes = import_job(dict(document), [] if others is None else others)
    else:
        readable = [kind for kind in KINDS.values() if kind.read is not None or kind.kind == KIND]
        known = ", ".join(dict.fromkeys(f"{kind.kind} of {kind.api_version}" for kind in readable))
        found = f"{show(names[1])} of {show(names[0])}"
        raise ValidationError([f"apiVersion, kind: must be one of {known}, got {found}"], subject=name_job(document))
    try:
        return Conversion(MSJob.from_dict(converted), changes)
    except ValidationError as error:
        raise ValidationError(error.errors, subject=f"{name_job(document)}, once converted,") from None


def convert_file(text: str, *, source: str = "", to: str | None = None) -> FileConversion:
    """Convert a YAML file's jobs; its other documents are kept.

    Args:
        text: The YAML, with one or more documents.
        source: File name, for messages.
        to: Target kind, in `kfp_mindspore.msjob.kinds.KINDS`; None for MSJob.

    Raises:
        ValidationError: Not YAML, no job in it, or a job that cannot be converted.
    """
    repeated: list[str] = []
    documents = parse_yaml_documents(text, source=source, repeated=repeated)
    others = [item for item in documents if not _is_job(item)]
    changes = [Change(key, "given twice, the last is used", "as Kubernetes does") for key in repeated]
    jobs: list[MSJob] = []
    exported: list[dict[str, Any]] = []
    used: list[dict[str, Any]] = []
    for document in (item for item in documents if _is_job(item)):
        # Two jobs may refer to one document.
        rest = list(others)
        conversion = convert_msjob(document, rest)
        used += [item for item in others if item not in rest]
        jobs.append(conversion.job)
        changes += conversion.changes
        if to is None:
            exported.append(conversion.job.to_dict())
        else:
            export = export_job(conversion.job, to)
            exported += export.manifests
            changes += export.changes
    if not jobs:
        raise ValidationError([f"{source or 'file'}: must hold a job"], subject="YAML")
    kept = [item for item in others if item not in used]
    return FileConversion((*kept, *exported), tuple(jobs), tuple(changes))


def _is_job(document: Mapping[str, Any]) -> bool:
    group = str(document.get("apiVersion", "?")).rpartition("/")[0]
    return group not in _KEPT_GROUPS and document.get("kind") not in ("ClusterTrainingRuntime", "TrainingRuntime")
