"""Other job kinds that an MSJob converts to, each with its own operator's manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.api.names import QUEUE_LABEL
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.kinds import ascendjob, legacy, mpijob, rayjob, trainjob, volcano
from kfp_mindspore.msjob.kinds.changes import Change
from kfp_mindspore.msjob.kinds.common import JobKind, Notes, note_object_fields

KINDS: dict[str, JobKind] = {
    kind.name: kind
    for kind in (
        *(mpijob.KIND, trainjob.KIND, ascendjob.KIND, volcano.KIND, rayjob.KIND),
        *(legacy.LEGACY, legacy.FIRST_GENERATION),
    )
}
# Kinds that are read from their manifests; both MSJob generations are read by `kfp_mindspore.msjob.convert`.
_READERS = (mpijob.KIND, trainjob.KIND, ascendjob.KIND, volcano.KIND)

_OBJECT_FIELDS = ("apiVersion", "kind", "metadata", "spec", "status")


@dataclass(frozen=True)
class Export:
    """A job in another kind.

    Attributes:
        manifests: In the order in which they are created.
        changes: Fields that the kind lacks or has in another form.
    """

    manifests: list[dict[str, Any]]
    changes: tuple[Change, ...]


def export_job(job: JobManifest, kind: str) -> Export:
    """Return a job's manifests in another kind.

    Args:
        job: A valid job.
        kind: A kind in KINDS, case-insensitive.

    Raises:
        ValidationError: The kind is unknown, or cannot express the job.
    """
    found = next((item for name, item in KINDS.items() if name.lower() == kind.lower()), None)
    if found is None:
        raise ValidationError([f"kind: must be one of {', '.join(KINDS)}, got {kind!r}"])
    notes = Notes()
    note_object_fields({"metadata": job.metadata, "status": job.status}, notes)
    if not found.has_queue and QUEUE_LABEL in (job.metadata.get("labels") or {}):
        managed = ", ".join(item.name for item in KINDS.values() if item.has_queue)
        notes.errors.append(f"metadata.labels.{QUEUE_LABEL}: must be absent, Kueue manages MSJob, {managed} only")
    manifests = found.export(job, notes)
    if notes.errors:
        raise ValidationError(notes.errors, subject=f"MSJob {job.name} as {found.name}")
    return Export(manifests, tuple(notes.changes))


def resolve_kind(document: Mapping[str, Any]) -> JobKind | None:
    """Return a manifest's kind, or None for MSJobs and other objects."""
    names = (document.get("apiVersion"), document.get("kind"))
    return next((kind for kind in _READERS if (kind.api_version, kind.kind) == names), None)


def import_job(document: dict[str, Any], others: list[dict[str, Any]]) -> tuple[dict[str, Any], tuple[Change, ...]]:
    """Return an MSJob's document for another kind's manifest, and the changes.

    Args:
        document: The manifest, for which `resolve_kind` returns a kind.
        others: The other documents in its file; documents that it refers to are removed.

    Raises:
        ValidationError: It cannot be converted; the message names the fields.
    """
    kind = resolve_kind(document)
    assert kind is not None
    assert kind.read is not None
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    subject = f"{kind.kind} {name}" if name else kind.kind
    notes = Notes()
    if not isinstance(metadata, Mapping) or not isinstance(document.get("spec"), Mapping):
        raise ValidationError(["metadata, spec: must be mappings"], subject=subject)
    notes.read({name: value for name, value in document.items() if name not in _OBJECT_FIELDS}, kind.kind)
    note_object_fields(document, notes)
    try:
        converted = kind.read(document, others, notes)
    except ValidationError as error:
        notes.errors += error.errors
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValidationError([f"spec: is not that of a {kind.kind} ({error!r})"], subject=subject) from None
    if not notes.errors:
        notes.refuse_rest()
    if notes.errors:
        raise ValidationError(notes.errors, subject=subject, hint="Change it in the file and convert it again.")
    notes.change("kind", f"{kind.kind} is now MSJob", "the operator of MSJob runs it")
    return converted, tuple(notes.changes)
