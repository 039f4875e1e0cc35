"""Data hand-over between Kubeflow Pipelines and a job's pods, chosen by the parameter `storage`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError, ValidationError
from kfp_mindspore.kube.errors import ForbiddenError
from kfp_mindspore.kube.resources import PERSISTENT_VOLUME_CLAIMS
from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.settings import POD_USER, get_namespace
from kfp_mindspore.steps.handover.job_name import make_job_name
from kfp_mindspore.steps.handover.step_pod import read_step_pod
from kfp_mindspore.steps.handover.storage_spec import (
    ARTIFACTS,
    CLAIM,
    WORKSPACE,
    WORKSPACE_DIR,
    StorageSpec,
    parse_storage,
)
from kfp_mindspore.steps.missing_modules import list_missing_modules
from kfp_mindspore.stores import config as store_config
from kfp_mindspore.stores.artifact_store import ArtifactStore, StoreError

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

ENTRYPOINT = "kfp_mindspore.podside.artifacts"
_ENTRYPOINT_MODULES = {"kfp_mindspore", "lazy_loader", "fsspec"}

# Below the step's output root, beside its artifacts: the same URI for each retry, and not in an artifact.
CHECKPOINT_FOLDER = "msjob-checkpoints"
_DATA_DIR = "/kfp-mindspore"
_CLAIM_DIR = "/kfp-mindspore-claim"
# KFP's own name for the workspace's volume.
_WORKSPACE_VOLUME = "kfp-workspace"
# A new volume belongs to root. Each Pod Security level allows a group; a volume that has it already is not changed.
_CLAIM_ACCESS = {"fsGroup": POD_USER, "fsGroupChangePolicy": "OnRootMismatch"}
_NO_WORKSPACE = "storage: workspace: the run has no workspace"
_WORKSPACE_HINT = "Set dsl.PipelineConfig(workspace=…) on the pipeline."
# kfp.dsl's local paths for URIs.
_LOCAL_PREFIXES = {"/s3/": "s3://", "/minio/": "minio://", "/gcs/": "gs://"}


@dataclass(frozen=True)
class JobStorage:
    """Data access for a job's pods.

    Args:
        patch: The pods' volumes, mounts and credentials.
        wrapper: The pods' entrypoint; the job's command follows it.
        inputs: Paths in the pods by URI.
        outputs: Paths in the pods by name.
        checkpoint_dir: Checkpoint directory in the pods.
        artifacts: This process's access to the artifacts' files.
    """

    patch: PodPatch
    wrapper: tuple[str, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    checkpoint_dir: str
    artifacts: ArtifactStore = field(compare=False)

    @contextlib.contextmanager
    def explain_failures(self) -> Iterator[None]:
        """Add the reason to the error for a job whose image lacks the entrypoint."""
        try:
            yield
        except ProcessFailedError as error:
            if _ENTRYPOINT_MODULES & list_missing_modules("\n".join((error.message, *error.log))):
                raise ProcessFailedError(
                    error.message,
                    hint="The image of the job lacks kfp-mindspore[artifacts], which reads and writes its artifacts.",
                    log=error.log,
                ) from None
            raise


def plan_storage(
    storage: str,
    *,
    root: str,
    folder: str,
    cluster: Cluster,
    namespace: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    job_namespace: str = "",
    checkpoint_dir: str = "",
    workflow: str = "",
    patch: PodPatch | None = None,
) -> JobStorage:
    """Return how a job's pods access a step's artifacts on a cluster.

    Args:
        storage: The parameter, see `parse_storage`.
        root: The step's output root URI.
        folder: Job directory in a workspace or claim, the same for each step retry.
        cluster: The cluster.
        namespace: Step namespace, with ConfigMap and Secrets.
        inputs: The input artifacts' paths in this process, by URI.
        outputs: The outputs' URIs by name; a name that ends with `/` is a directory that the command expects.
        job_namespace: Job namespace, with the claims; empty for the step's.
        checkpoint_dir: URI or mounted directory with checkpoints from several runs; empty for this step's own.
        workflow: The run's Workflow name; empty if it is unknown.
        patch: Volumes and mounts that the pods have besides.

    Raises:
        ValidationError: `storage` or `checkpoint_dir` is invalid.
        UserError: The pods cannot access an artifact, or the run has no workspace; nothing was submitted.
    """
    spec = parse_storage(storage)
    patch = patch or PodPatch()
    job_namespace = job_namespace or namespace
    if spec.kind == WORKSPACE and job_namespace != namespace:
        raise UserError(
            f"storage: workspace: the run's claim is in namespace {namespace}, the job in {job_namespace}: pods mount "
            "claims of their own namespace only",
            hint="Use storage=artifacts or a claim of the job's namespace, or run the job in the run's namespace.",
        )
    volumes = _build_volumes(spec, cluster, job_namespace, workflow, patch)
    base = _DATA_DIR
    if spec.kind != ARTIFACTS:
        base = "/".join(part for part in (volumes.volume_mounts[0]["mountPath"], spec.path, folder) if part)
    synced, directory = _resolve_checkpoints(checkpoint_dir, spec, root, base, patch.merge(volumes))
    in_place = {
        uri: path for uri, path in inputs.items() if spec.kind == WORKSPACE and path.startswith(f"{WORKSPACE_DIR}/")
    }
    downloads = {
        uri: f"{base}/inputs/{index}/{uri.rstrip('/').rpartition('/')[2]}"
        for index, uri in enumerate(uri for uri in inputs if uri not in in_place)
    }
    uploads = {f"{base}/outputs/{name}": uri for name, uri in outputs.items()}
    stores = store_config.resolve_stores(
        [*downloads, *uploads.values(), *([synced] if synced else ())],
        store_config.read_providers(cluster, namespace),
    )
    wrapper = ["python", "-m", ENTRYPOINT]
    for uri, path in downloads.items():
        wrapper += ["--download", uri, path]
    for path, uri in uploads.items():
        wrapper += ["--upload", path.rstrip("/"), uri, *(("--mkdir", path) if path.endswith("/") else ())]
    if synced:
        wrapper += ["--checkpoints", directory, synced, *(("--keep-checkpoints",) if checkpoint_dir else ())]
    else:
        wrapper += ["--mkdir", directory]
    if spec.kind != ARTIFACTS:
        wrapper.append("--shared")
    return JobStorage(
        patch=volumes.merge(PodPatch(env=store_config.build_env(stores))),
        wrapper=(*(part.replace("$", "$$") for part in wrapper), "--"),
        inputs={**downloads, **in_place},
        outputs={name: f"{base}/outputs/{name}".rstrip("/") for name in outputs},
        checkpoint_dir=directory,
        artifacts=store_config.open_stores(stores, cluster, namespace),
    )


def open_storage(
    storage: str,
    *,
    root: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    job_namespace: str = "",
    checkpoint_dir: str = "",
    patch: PodPatch | None = None,
) -> JobStorage:
    """Return the storage for this step's job on a cluster, see `plan_storage`.

    Raises:
        UserError: The store denies access, or this image lacks fsspec's implementation for it.
        KfpMindSporeError: The store cannot be reached.
    """
    from kfp_mindspore.kube.cluster import Cluster

    cluster = Cluster()
    pod = read_step_pod(cluster) if parse_storage(storage).kind == WORKSPACE else None
    planned = plan_storage(
        storage,
        root=root,
        folder=make_job_name(root),
        cluster=cluster,
        namespace=get_namespace() or cluster.namespace,
        inputs=inputs,
        outputs=outputs,
        job_namespace=job_namespace,
        checkpoint_dir=checkpoint_dir,
        workflow=str(pod.workflow["name"]) if pod is not None and pod.workflow is not None else "",
        patch=patch,
    )
    try:
        # Also fails where a finished job's result could not be read.
        planned.artifacts.list_files(root)
    except StoreError as error:
        message = f"the job is not submitted: {error}"
        raise (KfpMindSporeError if error.retryable else UserError)(message) from error
    return planned


def get_root_uri(output_file: str, artifact_uris: Sequence[str]) -> str:
    """Return a step's output root URI.

    Args:
        output_file: `outputs.outputFile` in KFP's ExecutorInput, `/s3/…/output_metadata.json` since KFP 2.16.
        artifact_uris: The output artifacts' URIs.

    Raises:
        UserError: Neither is below a URI.
    """
    for prefix, scheme in _LOCAL_PREFIXES.items():
        if output_file.startswith(prefix):
            return scheme + output_file[len(prefix) :].rpartition("/")[0]
    for uri in artifact_uris:
        if "://" in uri:
            return uri.rstrip("/").rpartition("/")[0]
    raise UserError(
        f"{output_file}: the step has no URI to which the job's pods can write their outputs",
        hint="It needs Kubeflow Pipelines ≥ 2.16 with a pipeline root of s3://, minio:// or gs://.",
    )


def _build_volumes(spec: StorageSpec, cluster: Cluster, namespace: str, workflow: str, patch: PodPatch) -> PodPatch:
    source: dict[str, Any]
    if spec.kind == ARTIFACTS:
        name, source, mount = "kfp-mindspore-data", {"emptyDir": {}}, _DATA_DIR
    elif spec.kind == CLAIM:
        _check_claim(cluster, spec.claim, namespace, f"storage: claim:{spec.claim}: there is no such claim")
        name, mount = "kfp-mindspore-claim", _CLAIM_DIR
        source = {"persistentVolumeClaim": {"claimName": spec.claim}}
    else:
        claim = _get_workspace_claim(patch, workflow)
        _check_claim(cluster, claim, namespace, _NO_WORKSPACE, _WORKSPACE_HINT)
        name, mount = _WORKSPACE_VOLUME, WORKSPACE_DIR
        source = {"persistentVolumeClaim": {"claimName": claim}}
    return PodPatch(
        volumes=[{"name": name, **source}],
        volume_mounts=[{"name": name, "mountPath": mount}],
        security_context={} if spec.kind == ARTIFACTS else _CLAIM_ACCESS,
    )


def _get_workspace_claim(patch: PodPatch, workflow: str) -> str:
    for volume in patch.volumes:
        if volume.get("name") == _WORKSPACE_VOLUME:
            return str(volume["persistentVolumeClaim"]["claimName"])
    if not workflow:
        raise UserError("storage: workspace: the Workflow of this step is unknown, and with it the claim's name")
    return f"{workflow}-{_WORKSPACE_VOLUME}"


def _check_claim(cluster: Cluster, claim: str, namespace: str, message: str, hint: str = "") -> None:
    # A step that may not get claims submits the job, and the pods' events name a missing claim.
    with contextlib.suppress(ForbiddenError):
        try:
            cluster.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace)
        except NotFoundError:
            raise UserError(f"{message}: claim {namespace}/{claim} does not exist", hint=hint) from None


def _resolve_checkpoints(given: str, spec: StorageSpec, root: str, base: str, patch: PodPatch) -> tuple[str, str]:
    """Return the checkpoints' URI, empty without one, and their directory in the pods."""
    if not given:
        if spec.kind == ARTIFACTS:
            return f"{root.rstrip('/')}/{CHECKPOINT_FOLDER}", f"{base}/checkpoints"
        return "", f"{base}/checkpoints"
    if "://" in given:
        return given.rstrip("/"), f"{base}/checkpoints"
    mounts = [str(mount["mountPath"]).rstrip("/") for mount in _list_shared_mounts(patch)]
    if any(given == mount or given.startswith(f"{mount}/") for mount in mounts):
        return "", given
    raise ValidationError(
        [f"checkpoint_dir: must be a URI or a directory of a volume of the pods ({', '.join(mounts)}), got {given!r}"],
        hint="A path of the step's own file system does not exist in the pods of the job.",
    )


def _list_shared_mounts(patch: PodPatch) -> list[Mapping[str, Any]]:
    empty = {volume["name"] for volume in patch.volumes if "emptyDir" in volume}
    return [mount for mount in patch.volume_mounts if mount["name"] not in empty]
