"""TrainingClient method arguments, and their jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.api.manifest import serialize
from kfp_mindspore.msjob.api.names import KIND, REPLICA_TYPES, WORKER, resolve_replica_type
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.build import PodPatch, build_msjob
from kfp_mindspore.msjob.commands import build_function_command
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.settings import get_image

_TEXT = ((str,), "a text")
_TEXTS = ((Mapping,), "a mapping of texts by name")
_LIST = ((Sequence,), "a list")
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "name": _TEXT,
    "namespace": _TEXT,
    "labels": _TEXTS,
    "annotations": _TEXTS,
    "base_image": _TEXT,
    "parameters": ((dict,), "a dict"),
    "num_workers": ((int,), "an integer"),
    "packages_to_install": ((Sequence,), "a list of packages"),
    "pip_index_url": _TEXT,
    "env_vars": ((Mapping, Sequence), "a mapping of texts by name, or a list of EnvVars"),
    "queue_name": _TEXT,
    "queue_priority": _TEXT,
    "volumes": _LIST,
    "volume_mounts": _LIST,
    "pod_labels": _TEXTS,
    "pod_annotations": _TEXTS,
    "device": _TEXT,
}


def check_job_kind(job_kind: str | None, others: Iterable[str] = ()) -> None:
    """Raise a ValidationError for another kind than MSJob and the given others."""
    if job_kind not in (None, KIND, *others):
        raise ValidationError([f"job_kind: must be {' or '.join(map(repr, (KIND, *others)))}, got {job_kind!r}"])


def check_processes(num_procs_per_worker: int | str | None) -> None:
    """Raise a ValidationError for several processes in a worker."""
    if num_procs_per_worker not in (None, 1, "1"):
        raise ValidationError(
            [f"num_procs_per_worker: must be 1, got {num_procs_per_worker!r}"],
            hint="Start several processes in a worker with msrun as the template's command, or use more workers.",
        )


def check_types(**arguments: object) -> None:
    """Raise a ValidationError that names each wrongly typed TrainingClient method argument; None is valid."""
    errors = []
    for name, value in arguments.items():
        types, expected = _TYPES[name]
        is_wrong = not isinstance(value, types) or (isinstance(value, str) and str not in types)
        if value is not None and (is_wrong or isinstance(value, bool)):
            errors.append(f"{name}: must be {expected}, got {value!r:.80}")
    if errors:
        raise ValidationError(errors, subject="create_job")


def read_job(job: MSJob | Mapping[str, Any]) -> MSJob:
    """Return a copied job, or a manifest's job.

    Raises:
        ValidationError: It is neither, or the manifest is invalid.
    """
    if not isinstance(job, (MSJob, Mapping)):
        raise ValidationError([f"job: must be an MSJob or its manifest, got {type(job).__name__}"])
    document = serialize(job) if isinstance(job, Mapping) else job.to_dict()
    return MSJob.from_dict(document, validate=isinstance(job, Mapping))


def build_function_job(
    name: str,
    namespace: str,
    image: str | None,
    train_func: Callable[..., Any] | None,
    parameters: dict[str, Any] | None,
    *,
    workers: int = 1,
    resources: Any = None,
    packages_to_install: Sequence[str] | None = None,
    pip_index_url: str | None = None,
    env: Mapping[str, str] | Sequence[Any] | None = None,
    volumes: Sequence[Any] = (),
    volume_mounts: Sequence[Any] = (),
    pod_labels: Mapping[str, str] | None = None,
    pod_annotations: Mapping[str, str] | None = None,
    device: str | None = None,
) -> MSJob:
    """Return the job for a function, or for an image with its own entry point when there is no function.

    Args:
        name: Job name.
        namespace: Job namespace.
        image: The workers' image; default KFP_MINDSPORE_IMAGE.
        train_func: The function, with no or one argument.
        parameters: The function's argument.
        workers: Worker count.
        resources: ResourceRequirements, or resources by name.
        packages_to_install: Installed by pip before the function runs.
        pip_index_url: Package index for pip.
        env: Variables by name, or Kubernetes EnvVars.
        volumes: Volumes for each worker.
        volume_mounts: Their mounts.
        pod_labels: Pod labels.
        pod_annotations: Pod annotations.
        device: Each worker's device, see `JobOptions`.

    Raises:
        ValidationError: There are fewer mounts than volumes, or the job is invalid.
    """
    if len(volumes) > len(volume_mounts):
        raise ValidationError([f"volume_mounts: must be one per volume, got {len(volume_mounts)} for {len(volumes)}"])
    command = None
    if train_func is not None:
        command = build_function_command(
            train_func, parameters, packages_to_install=packages_to_install or (), pip_index_url=pip_index_url
        )
    return build_msjob(
        name,
        command=command,
        namespace=namespace,
        pod=PodPatch(volumes=serialize(list(volumes)), volume_mounts=serialize(list(volume_mounts))),
        image=get_image(image or ""),
        workers=workers,
        env=env,
        resources=resources,
        pod_labels=pod_labels,
        pod_annotations=pod_annotations,
        device=device,
    )


def build_pod_filter(
    is_master: bool = False, replica_type: str | None = None, replica_index: int | None = None
) -> Callable[[Pod], bool]:
    """Return the predicate for `get_job_pods` arguments.

    Raises:
        ValidationError: The replica type is unknown.
    """
    kind = resolve_replica_type(replica_type) if replica_type is not None else None
    if replica_type is not None and kind is None:
        raise ValidationError([f"replica_type: must be one of {', '.join(REPLICA_TYPES)}, got {replica_type!r}"])

    def is_selected(pod: Pod) -> bool:
        return (
            (not is_master or (pod.replica_type == WORKER and pod.index == 0))
            and kind in (None, pod.replica_type)
            and replica_index in (None, pod.index)
        )

    return is_selected
