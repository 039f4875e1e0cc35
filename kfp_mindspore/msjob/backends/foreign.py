"""An MSJob's submission as another kind, which that kind's own operator runs."""

from __future__ import annotations

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.errors import NotInstalledError
from kfp_mindspore.msjob.backends.base import JobBackend
from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend, check_images
from kfp_mindspore.msjob.kinds import KINDS, Export, export_job
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import validate_msjob


def create_as_kind(backend: JobBackend, job: MSJob, kind: str, *, dry_run: bool = False) -> Export:
    """Submit a job as another kind; return its stored manifests, and the conversion's changes.

    Objects without a namespace, such as a ClusterTrainingRuntime, are applied; the job itself is created.

    Args:
        backend: A KubernetesBackend.
        job: The job.
        kind: A kind in `kfp_mindspore.msjob.kinds.KINDS`.
        dry_run: Only validate it, by the API server.

    Raises:
        ValidationError: The backend is no cluster, the kind cannot express the job, or the job is invalid.
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
    export = export_job(job, kind)
    manifests = export.manifests
    cluster = backend.cluster
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
