"""An MSJob's submission as another kind, which that kind's own operator runs."""

from __future__ import annotations

from typing import Any

from kfp_mindspore.errors import NotFoundError, ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import NotInstalledError
from kfp_mindspore.msjob.backends.base import JobBackend
from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend, check_images
from kfp_mindspore.msjob.kinds import KINDS, Export, export_job, trainjob
from kfp_mindspore.msjob.kinds.common import Notes
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import validate_msjob


def create_as_kind(backend: JobBackend, job: MSJob, kind: str, *, dry_run: bool = False) -> Export:
    """Submit a job as another kind; return its stored manifests, and the conversion's changes.

    Objects without a namespace, such as a ClusterTrainingRuntime, are applied; the job itself is created. A TrainJob
    uses the ClusterTrainingRuntime `mindspore-distributed` where the cluster has it, and brings its own elsewhere.

    Args:
        backend: A KubernetesBackend.
        job: The job.
        kind: A kind in `kfp_mindspore.msjob.kinds.KINDS`.
        dry_run: Only validate it, by the API server.

    Raises:
        ValidationError: The backend is no cluster, the kind or its shared runtime cannot express the job, or the job is
            invalid.
        NotInstalledError: The cluster does not have the kind's definition; nothing was created.
        AlreadyExistsError: A job with this name exists.
    """
    if not isinstance(backend, KubernetesBackend):
        raise ValidationError(
            [f"kind: must be MSJob on this machine, got {kind!r}"],
            hint="Other kinds need their operator: add --backend kubernetes.",
        )
    validate_msjob(job)
    check_images(job)
    job.metadata.setdefault("namespace", backend.default_namespace)
    cluster = backend.cluster
    shared = _find_shared_runtime(cluster) if kind.lower() == trainjob.KIND.name.lower() else None
    export = _export_with_runtime(job, shared) if shared else export_job(job, kind)
    manifests = export.manifests
    try:
        resources = [cluster.resolve_resource(item["apiVersion"], item["kind"]) for item in manifests]
    except NotInstalledError as error:
        raise NotInstalledError(
            f"{error.message}: this cluster cannot run {kind}",
            hint="Install its operator, or submit the job as MSJob. Kinds: " + ", ".join(KINDS),
        ) from None
    stored = []
    for resource, manifest in zip(resources, manifests, strict=True):
        if resource.namespaced:
            stored.append(cluster.create(resource, manifest, job.namespace, dry_run=dry_run))
        else:
            stored.append(cluster.apply(manifest, dry_run=dry_run))
    return Export(stored, export.changes)


def _find_shared_runtime(cluster: Cluster) -> dict[str, Any] | None:
    try:
        resource = cluster.resolve_resource(trainjob.KIND.api_version, trainjob.RUNTIME_KIND)
        return cluster.get(resource, DISTRIBUTED)
    except (NotInstalledError, NotFoundError):
        return None


def _export_with_runtime(job: MSJob, runtime: dict[str, Any]) -> Export:
    notes = Notes()
    manifest = trainjob.export_with_runtime(job, runtime, notes)
    if notes.errors:
        raise ValidationError(
            notes.errors,
            subject=f"MSJob {job.name} as {trainjob.KIND.name}",
            hint="Submit it as MSJob, or apply a runtime of its own: `kfp-mindspore job convert FILE --to TrainJob`.",
        )
    return Export([manifest], tuple(notes.changes))
