"""Build an MSJob from a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.manifest import serialize
from kfp_mindspore.msjob.names import CONTAINER_NAME, DEFAULT_BACKOFF_LIMIT, WORKER
from kfp_mindspore.msjob.spec import ReplicaSpec, RunPolicy
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.settings import PLACEHOLDER_IMAGE

SHARED_MEMORY = "/dev/shm"


def build_msjob(
    name: str,
    *,
    command: Sequence[str] | None,
    args: Sequence[str] = (),
    image: str = PLACEHOLDER_IMAGE,
    workers: int = 1,
    namespace: str = "default",
    env: Mapping[str, str] | Sequence[Any] | None = None,
    restart_policy: str = "OnFailure",
    backoff_limit: int = DEFAULT_BACKOFF_LIMIT,
    active_deadline_seconds: int | None = None,
    ttl_seconds_after_finished: int | None = None,
    clean_pod_policy: str | None = None,
    resources: Any = None,
    working_dir: str | None = None,
    empty_dirs: Mapping[str, str] | None = None,
) -> MSJob:
    """Build a job whose workers run the same command.

    Args:
        name: A DNS label of at most 51 characters.
        command: The workers' command, such as `["python", "train.py"]`; None for their image's entry point.
        args: Its arguments.
        image: The workers' image; the local backend runs in the present environment instead.
        workers: Worker count. From 2 on a scheduler runs the same command, with another `MS_ROLE`.
        namespace: Job namespace.
        env: Variables by name, or a Kubernetes EnvVar list.
        restart_policy: `Always`, `OnFailure`, `Never` or `ExitCode`.
        backoff_limit: Maximum restarts.
        active_deadline_seconds: Maximum run time in seconds; None for no limit.
        ttl_seconds_after_finished: Seconds until a finished job is deleted; None for never.
        clean_pod_policy: `Running` (the default), `All` or `None`.
        resources: A worker's ResourceRequirements, or its limits, such as `{"cpu": 2}`.
        working_dir: The command's working directory.
        empty_dirs: Empty directories in each worker's pod by path, see `build_empty_dirs`.

    Raises:
        ValidationError: An argument is wrong; the message names the field.
    """
    container: dict[str, Any] = {"name": CONTAINER_NAME, "image": image}
    if command is not None:
        container["command"] = _to_list(command)
    if args:
        container["args"] = _to_list(args)
    if env:
        container["env"] = to_env_vars(env)
    if resources:
        container["resources"] = to_resource_requirements(resources)
    if working_dir:
        container["workingDir"] = working_dir
    pod: dict[str, Any] = {"containers": [container]}
    if empty_dirs:
        pod["volumes"], container["volumeMounts"] = build_empty_dirs(empty_dirs)
    job = MSJob(
        metadata={"name": name, "namespace": namespace},
        ms_replica_specs={WORKER: ReplicaSpec(workers, restart_policy, {"spec": pod})},
        run_policy=RunPolicy(
            active_deadline_seconds=active_deadline_seconds,
            backoff_limit=backoff_limit,
            clean_pod_policy=clean_pod_policy,
            ttl_seconds_after_finished=ttl_seconds_after_finished,
        ),
    )
    validate_msjob(job)
    return job


def build_empty_dirs(empty_dirs: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes and mounts for a pod's empty directories.

    Args:
        empty_dirs: Size limit, such as `8Gi`, or an empty text for none, by absolute path. `/dev/shm` is in memory and
            counts as its container's memory; others are on the node's disk.

    Raises:
        ValidationError: A path is not absolute.
    """
    volumes, mounts = [], []
    for number, (path, size) in enumerate(empty_dirs.items()):
        if not path.startswith("/"):
            raise ValidationError([f"empty_dirs: must be absolute paths with size limits, got {path!r}"])
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
    if {"limits", "requests", "claims"} & wire.keys():
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
