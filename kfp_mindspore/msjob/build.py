"""Build an MSJob from a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.msjob.manifest import serialize
from kfp_mindspore.msjob.names import CONTAINER_NAME, DEFAULT_CLEAN_POD_POLICY, WORKER
from kfp_mindspore.msjob.options import JobOptions
from kfp_mindspore.msjob.pod_patch import PodPatch, patch_template
from kfp_mindspore.msjob.spec import ReplicaSpec, RunPolicy
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import PLACEHOLDER_IMAGE

SHARED_MEMORY = "/dev/shm"


def build_msjob(
    name: str,
    *,
    command: Sequence[str] | None,
    args: Sequence[str] = (),
    namespace: str = "default",
    options: JobOptions | None = None,
    pod: PodPatch | None = None,
    **changes: Any,
) -> MSJob:
    """Build a job whose workers run the same command; a backend validates it when it is submitted.

    Args:
        name: A DNS label of at most 51 characters.
        command: The workers' command, such as `["python", "train.py"]`; None for their image's entry point.
        args: Its arguments.
        namespace: Job namespace.
        options: The job's options.
        pod: Additions to the workers' pods; the options take precedence.
        **changes: `JobOptions` fields that replace those of `options`, such as `workers=2`. `env` may be a list of
            Kubernetes EnvVars.

    Raises:
        ValidationError: An option is invalid; the message names it.
    """
    pod = pod or PodPatch()
    if isinstance(changes.get("env"), Sequence):
        pod = pod.merge(PodPatch(env=to_env_vars(changes.pop("env"))))
    if changes.get("resources") is not None:
        changes["resources"] = serialize(changes["resources"])
    options = (options or JobOptions()).merge(changes)
    container: dict[str, Any] = {"name": CONTAINER_NAME, "image": options.image or PLACEHOLDER_IMAGE}
    if command is not None:
        container["command"] = _to_list(command)
    if args:
        container["args"] = _to_list(args)
    if options.working_dir:
        container["workingDir"] = options.working_dir
    template = patch_template({"spec": {"containers": [container]}}, pod.merge(_build_patch(options)))
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    for field in ("labels", "annotations"):
        if entries := getattr(options, field):
            metadata[field] = dict(entries)
    clean_pod_policy = options.clean_pod_policy
    return MSJob(
        metadata=metadata,
        ms_replica_specs={WORKER: ReplicaSpec(options.workers, options.restart_policy, template)},
        run_policy=RunPolicy(
            active_deadline_seconds=options.active_deadline_seconds,
            backoff_limit=options.backoff_limit,
            # The default is left out: not each other kind of job can express it.
            clean_pod_policy=None if clean_pod_policy == DEFAULT_CLEAN_POD_POLICY else clean_pod_policy,
            ttl_seconds_after_finished=options.ttl_seconds_after_finished,
        ),
        success_policy=None if options.success_policy == "Default" else options.success_policy,
    )


def _build_patch(options: JobOptions) -> PodPatch:
    volumes, mounts = _build_empty_dirs(options.empty_dirs)
    return PodPatch(
        volumes=volumes,
        volume_mounts=mounts,
        env=to_env_vars(options.env),
        resources=to_resource_requirements(options.resources),
        labels=options.pod_labels,
        annotations=options.pod_annotations,
        image_pull_secrets=[{"name": name} for name in options.image_pull_secrets],
        service_account_name=options.service_account,
        security_context=options.security_context,
    )


def _build_empty_dirs(empty_dirs: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return volumes and mounts; `/dev/shm` is in memory and counts as its container's memory."""
    volumes, mounts = [], []
    for number, (path, size) in enumerate(empty_dirs.items()):
        source = {"medium": "Memory"} if path.rstrip("/") == SHARED_MEMORY else {}
        volumes.append({"name": f"empty-dir-{number}", "emptyDir": source | ({"sizeLimit": size} if size else {})})
        mounts.append({"name": f"empty-dir-{number}", "mountPath": path})
    return volumes, mounts


def to_env_vars(env: Mapping[str, Any] | Sequence[Any]) -> list[dict[str, Any]]:
    """Return Kubernetes EnvVars for variables by name, or for listed EnvVars, dicts or models."""
    if isinstance(env, Mapping):
        return [{"name": name, "value": str(value)} for name, value in env.items()]
    items: list[dict[str, Any]] = serialize(list(env))
    return items


def _to_list(words: Sequence[str]) -> Any:
    # A command line in one string stays one, for validation to refuse.
    return words if isinstance(words, str) else list(words)


def to_resource_requirements(resources: Any) -> dict[str, Any]:
    """Return ResourceRequirements: unchanged, or equal requests and limits for resources by name.

    As in TrainingClient, `gpu` stands for `nvidia.com/gpu`.
    """
    wire = serialize(resources)
    if not wire or {"limits", "requests", "claims"} & wire.keys():
        requirements: dict[str, Any] = wire
        return requirements
    amounts = {"nvidia.com/gpu" if name == "gpu" else name: str(amount) for name, amount in wire.items()}
    return {"requests": amounts, "limits": dict(amounts)}


def has_image(container: Mapping[str, Any]) -> bool:
    """Return whether a container has an image that a cluster could pull.

    Args:
        container: As in a pod template.
    """
    return container.get("image") not in (None, "", PLACEHOLDER_IMAGE)
