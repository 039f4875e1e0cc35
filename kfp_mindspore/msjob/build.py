"""An MSJob's build from a command: the job's options, additions to its pods, and the manifest that they give."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.kube.devices import DEFAULT_RESOURCES, set_device
from kfp_mindspore.kube.names import RESERVED_LABELS, list_name_errors, list_reserved_errors
from kfp_mindspore.msjob.api.kueue import PRIORITY_CLASS_LABEL
from kfp_mindspore.msjob.api.manifest import serialize
from kfp_mindspore.msjob.api.names import (
    CLEAN_POD_POLICIES,
    CONTAINER_NAME,
    DEFAULT_BACKOFF_LIMIT,
    DEFAULT_CLEAN_POD_POLICY,
    DEFAULT_RESTART_POLICY,
    QUEUE_LABEL,
    RESERVED_PREFIXES,
    RESTART_POLICIES,
    WORKER,
)
from kfp_mindspore.msjob.api.spec import ReplicaSpec, RunPolicy
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.options import check_options, merge_values, option, to_text
from kfp_mindspore.settings import ASCEND, AUTO, DEVICES, GPU, PLACEHOLDER_IMAGE

if TYPE_CHECKING:
    from typing_extensions import Unpack

Object = Mapping[str, Any]
SHARED_MEMORY = "/dev/shm"
_LONGEST_LABEL = 63


@dataclass(frozen=True)
class JobOptions:
    """Job options, checked when they are built.

    Args:
        workers: Worker count. With more than one, a scheduler is added.
        image: The workers' image. Default: $KFP_MINDSPORE_IMAGE, in a step also the step's image; on this machine
            the present environment is used instead.
        env: The workers' environment variables by name.
        restart_policy: Terminations that restart the job. `ExitCode`: those with a retryable exit code (130, 137, 138,
            143), while any other fails the job; `OnFailure`: those with any exit code but 0; `Always`; `Never`.
        success_policy: Workers whose success is the job's. `Default`: worker 0; `AllWorkers`.
        backoff_limit: Restarts after which the job fails.
        active_deadline_seconds: Seconds after which the job is terminated and fails. Default: no limit.
        start_timeout_seconds: Seconds for which the job's pods may be unable to start. Default: 600 if no node of the
            cluster fits a pod or no operator reconciles the job, 60 for an image that cannot be pulled, a missing
            Secret or a refused pod, and no limit while other pods use the resources. It does not apply in a queue.
        ttl_seconds_after_finished: Seconds after which a finished job is deleted. Default: it is kept.
        clean_pod_policy: Pods or processes deleted when the job finishes: `Running`, `All` or `None`.
        resources: Each worker's Kubernetes resource requirements. {"requests": {…}, "limits": {…}}, or by resource
            for equal requests and limits, such as {"cpu": 2}.
        device: Each worker's device: `auto`, CPU, GPU or Ascend. `auto` is that of the requested resources, else what
            MindSpore finds. Without such a resource GPU requests `nvidia.com/gpu: 1`, Ascend `huawei.com/Ascend910: 1`.
        working_dir: The command's working directory; by default the present one, on a cluster the image's.
        empty_dirs: Size limits for empty directories in the workers' pods by path, such as 8Gi for `/dev/shm`. That one
            is in memory; an empty text is no limit.
        labels: Job labels.
        annotations: Job annotations.
        pod_labels: Pod labels. Such as {"fault-scheduling": "force"}.
        pod_annotations: Pod annotations. Such as {"huawei.com/vnpu-mode": "hami-core"}.
        image_pull_secrets: Registry secret names for the job's pods.
        service_account: Service account for the job's pods.
        security_context: PodSecurityContext for the job's pods.
        delete_after_done: Whether the step deletes its finished job, and with it its pods' logs.
        storage: How data reach the pods on a cluster: `artifacts`, `workspace` or `claim:NAME/PATH`.
        queue: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
        queue_priority: Priority in the queue, a WorkloadPriorityClass. Jobs of a higher one start first, and may
            preempt others.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    workers: int = option(1, minimum=1)
    image: str = ""
    env: Mapping[str, str] = option({})
    restart_policy: str = option(DEFAULT_RESTART_POLICY, enum=list(RESTART_POLICIES))
    success_policy: str = option("Default", enum=["Default", "AllWorkers"])
    backoff_limit: int = option(DEFAULT_BACKOFF_LIMIT, minimum=0)
    active_deadline_seconds: int | None = option(None, minimum=1)
    start_timeout_seconds: int | None = option(None, minimum=1)
    ttl_seconds_after_finished: int | None = option(None, minimum=0)
    clean_pod_policy: str = option(DEFAULT_CLEAN_POD_POLICY, enum=list(CLEAN_POD_POLICIES))
    resources: Mapping[str, Any] = option({})
    device: str = option(AUTO, enum=DEVICES)
    working_dir: str = ""
    empty_dirs: Mapping[str, str] = option({})
    labels: Mapping[str, str] = option({})
    annotations: Mapping[str, str] = option({})
    pod_labels: Mapping[str, str] = option({})
    pod_annotations: Mapping[str, str] = option({})
    image_pull_secrets: Sequence[str] = ()
    service_account: str = ""
    security_context: Mapping[str, Any] = option({})
    delete_after_done: bool = False
    storage: str = "artifacts"
    queue: str = ""
    queue_priority: str = ""

    def __post_init__(self) -> None:
        # KFP's parameters are numbers where Kubernetes has texts.
        for name in ("env", "empty_dirs", "labels", "annotations", "pod_labels", "pod_annotations"):
            if isinstance(values := getattr(self, name), Mapping):
                object.__setattr__(self, name, {key: to_text(value) for key, value in values.items()})
        check_options(self)
        errors = [f"empty_dirs: must be absolute paths, got {path!r}" for path in self.empty_dirs if path[:1] != "/"]
        for name in ("queue", "queue_priority"):
            if value := getattr(self, name):
                errors += list_name_errors(name, value, longest=_LONGEST_LABEL)
        if errors := [*errors, *list_pod_metadata_errors(self.pod_labels, self.pod_annotations)]:
            raise ValidationError(errors)

    @property
    def queue_labels(self) -> dict[str, str]:
        """The job's labels for Kueue."""
        labels = {QUEUE_LABEL: self.queue, PRIORITY_CLASS_LABEL: self.queue_priority}
        return {name: value for name, value in labels.items() if value}

    def merge(self, changes: Mapping[str, Any]) -> JobOptions:
        """Return a copy with other values: a mapping is merged, None is ignored, any other value replaces.

        Args:
            changes: Values by field.
        """
        return dataclasses.replace(self, **merge_values(vars(self), changes))


def list_pod_metadata_errors(
    labels: Mapping[str, str], annotations: Mapping[str, str], prefix: str = "pod_"
) -> list[str]:
    """Return a sentence for each pod label and annotation that the cluster or the operator sets.

    Args:
        labels: Pod labels.
        annotations: Pod annotations.
        prefix: Prefix of the arguments `labels` and `annotations`, for the message.
    """
    return [
        *list_reserved_errors(f"{prefix}labels", labels, (*RESERVED_PREFIXES, *RESERVED_LABELS)),
        *list_reserved_errors(f"{prefix}annotations", annotations, RESERVED_PREFIXES),
    ]


class TrainingChanges(TypedDict, total=False):
    """Fields of `JobOptions` by keyword, without those that `MSJobClient.train` has under other names."""

    restart_policy: str | None
    success_policy: str | None
    backoff_limit: int | None
    active_deadline_seconds: int | None
    start_timeout_seconds: int | None
    ttl_seconds_after_finished: int | None
    clean_pod_policy: str | None
    device: str | None
    working_dir: str | None
    empty_dirs: Mapping[str, str] | None
    pod_labels: Mapping[str, str] | None
    pod_annotations: Mapping[str, str] | None
    image_pull_secrets: Sequence[str] | None
    service_account: str | None
    security_context: Mapping[str, Any] | None
    delete_after_done: bool | None
    storage: str | None
    queue_priority: str | None


class JobChanges(TrainingChanges, total=False):
    """Fields of `JobOptions` by keyword; None is no change."""

    workers: int | None
    image: str | None
    env: Mapping[str, str] | Sequence[Any] | None
    resources: Any
    labels: Mapping[str, str] | None
    annotations: Mapping[str, str] | None
    queue: str | None


@dataclass(frozen=True)
class PodPatch:
    """Additions to a pod template; empty fields add nothing.

    Args:
        env: The training container's EnvVars, `valueFrom` included.
        volumes: The pod's volumes.
        volume_mounts: The training container's mounts.
        resources: The training container's ResourceRequirements.
        node_selector: Node labels for the pod.
        tolerations: The pod's tolerations.
        affinity: The pod's affinity: nodeAffinity, podAffinity, podAntiAffinity.
        labels: Pod labels.
        annotations: Pod annotations.
        image_pull_secrets: Registry secret names: [{"name": …}].
        service_account_name: The pod's service account.
        automount_service_account_token: Whether the training container has this account's token.
        security_context: PodSecurityContext.
    """

    env: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    volume_mounts: Sequence[Object] = ()
    resources: Object = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Object] = ()
    affinity: Object = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: Sequence[Object] = ()
    service_account_name: str = ""
    automount_service_account_token: bool = False
    security_context: Object = field(default_factory=dict)

    def merge(self, other: PodPatch) -> PodPatch:
        """Return both additions; where both set the same entry, `other`'s is used.

        Entries are the same by `name` (env, volumes, pull secrets), by `mountPath` (mounts), by key (mappings; requests
        and limits by resource), and tolerations by equality.
        """
        merged: dict[str, Any] = {}
        for entry in dataclasses.fields(self):
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if isinstance(mine, str | bool):
                merged[entry.name] = theirs or mine
            elif isinstance(mine, Mapping):
                merged[entry.name] = _merge_mapping(mine, theirs)
            else:
                merged[entry.name] = _merge_list(mine, theirs, _KEYS.get(entry.name, "name"))
        return PodPatch(**merged)


# The field that identifies a list entry; None: the entry itself.
_KEYS = {"volume_mounts": "mountPath", "tolerations": None}
_POD_FIELDS = {
    "volumes": "volumes",
    "node_selector": "nodeSelector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "image_pull_secrets": "imagePullSecrets",
    "service_account_name": "serviceAccountName",
    "automount_service_account_token": "automountServiceAccountToken",
    "security_context": "securityContext",
}
_CONTAINER_FIELDS = {"env": "env", "volume_mounts": "volumeMounts", "resources": "resources"}
_METADATA_FIELDS = {"labels": "labels", "annotations": "annotations"}


def build_msjob(
    name: str,
    *,
    command: Sequence[str] | None,
    args: Sequence[str] = (),
    namespace: str = "default",
    options: JobOptions | None = None,
    pod: PodPatch | None = None,
    **changes: Unpack[JobChanges],
) -> MSJob:
    """Build a job whose workers run the same command; a backend validates it when it is submitted.

    Args:
        name: A DNS label of at most 51 characters.
        command: The workers' command, such as `["python", "train.py"]`; None for their image's entry point.
        args: The command's arguments.
        namespace: Job namespace.
        options: The job's options.
        pod: Additions to the workers' pods; the options take precedence.
        **changes: `JobOptions` fields that replace those of `options`, such as `workers=2`. `env` may be a list of
            Kubernetes EnvVars.

    Raises:
        ValidationError: An option is invalid; the message names it.
    """
    pod = pod or PodPatch()
    env = changes.get("env")
    if isinstance(env, Sequence):
        pod = pod.merge(PodPatch(env=to_env_vars(env)))
        changes["env"] = None
    if changes.get("resources") is not None:
        changes["resources"] = serialize(changes["resources"])
    if changes or options is None:
        options = (options or JobOptions()).merge(changes)
    container: dict[str, Any] = {"name": CONTAINER_NAME, "image": options.image or PLACEHOLDER_IMAGE}
    if command is not None:
        container["command"] = _to_list(command)
    if args:
        container["args"] = _to_list(args)
    if options.working_dir:
        container["workingDir"] = options.working_dir
    template = patch_template({"spec": {"containers": [container]}}, pod.merge(_build_patch(options)))
    (worker,) = template["spec"]["containers"]
    set_device(worker, options.device)
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if labels := {**options.labels, **options.queue_labels}:
        metadata["labels"] = labels
    if options.annotations:
        metadata["annotations"] = dict(options.annotations)
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

    As in TrainingClient, `gpu` stands for `nvidia.com/gpu`, and `npu` for `huawei.com/Ascend910`.
    """
    wire = serialize(resources)
    if not wire or {"limits", "requests", "claims"} & wire.keys():
        requirements: dict[str, Any] = wire
        return requirements
    short = {"gpu": DEFAULT_RESOURCES[GPU], "npu": DEFAULT_RESOURCES[ASCEND]}
    amounts = {short.get(name, name): str(amount) for name, amount in wire.items()}
    return {"requests": amounts, "limits": dict(amounts)}


def has_image(container: Mapping[str, Any]) -> bool:
    """Return whether a container has an image that a cluster could pull.

    Args:
        container: As in a pod template.
    """
    return container.get("image") not in (None, "", PLACEHOLDER_IMAGE)


def patch_template(template: Object, patch: PodPatch) -> dict[str, Any]:
    """Return a pod template with additions; where both set the same entry, the patch's is used.

    Args:
        template: PodTemplateSpec; unchanged. Its training container is the one named `mindspore`.
        patch: The additions.
    """
    patched: dict[str, Any] = copy.deepcopy(dict(template))
    pod = patched.setdefault("spec", {})
    present = PodPatch(**_read(patched.get("metadata") or {}, _METADATA_FIELDS), **_read(pod, _POD_FIELDS))
    merged = present.merge(patch)
    _write(pod, merged, _POD_FIELDS)
    metadata = dict(patched.get("metadata") or {})
    _write(metadata, merged, _METADATA_FIELDS)
    if metadata:
        patched["metadata"] = metadata
    for container in pod.get("containers") or []:
        if container.get("name") == CONTAINER_NAME:
            _write(container, PodPatch(**_read(container, _CONTAINER_FIELDS)).merge(patch), _CONTAINER_FIELDS)
    return patched


def _read(document: Object, fields: Mapping[str, str]) -> dict[str, Any]:
    return {name: document[key] for name, key in fields.items() if document.get(key)}


def _write(document: dict[str, Any], patch: PodPatch, fields: Mapping[str, str]) -> None:
    for name, key in fields.items():
        if value := getattr(patch, name):
            document[key] = copy.deepcopy(value if isinstance(value, str | bool | Mapping) else list(value))


def _merge_mapping(mine: Object, theirs: Object) -> dict[str, Any]:
    """Merge nested mappings key by key; lists and scalars are replaced."""
    merged = dict(mine)
    for key, value in theirs.items():
        present = merged.get(key)
        both = isinstance(present, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge_mapping(present, value) if both else value  # type: ignore[arg-type]
    return merged


def _merge_list(mine: Sequence[Object], theirs: Sequence[Object], key: str | None) -> list[Object]:
    """Replace entries with the same key in their place and append the others."""
    merged = list(mine)
    for item in theirs:
        same = [
            index
            for index, other in enumerate(merged)
            if (other == item if key is None else other.get(key) == item.get(key))
        ]
        if same:
            merged[same[0]] = item
        else:
            merged.append(item)
    return merged
