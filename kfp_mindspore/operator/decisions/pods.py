"""Job pod manifests. Pure.

Several processes per pod: `msrun` in the template's command reads the pod's MS_SCHED_HOST, MS_SCHED_PORT and MS_NODE_ID
as `--master_addr`, `--master_port` and `--node_rank`, and sets MS_* for the processes that it starts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.kube.devices import drop_devices
from kfp_mindspore.msjob.api.names import ATTEMPT_LABEL, CONTAINER_NAME, JOB_LABEL, WORKER
from kfp_mindspore.msjob.decisions.requests import uses_worker_template
from kfp_mindspore.msjob.decisions.security import restrict_pod
from kfp_mindspore.msjob.decisions.topology import VARIABLES, Endpoints, Member, build_topology
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import HOST_ANNOTATION, RESTARTS_ANNOTATION, WORKERS_ANNOTATION
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.settings import PROGRESS_VARIABLE

ISTIO_INJECT = "sidecar.istio.io/inject"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
SCHEDULER_PLUGINS_GROUP = "scheduling.x-k8s.io/pod-group"
# A pod's address is known only after it was created: the downward API provides it.
OWN_ADDRESS = "status.podIP"
# Kubernetes' own default is 300. A node counts as lost 50 s after its last report.
_LOST_NODE_SECONDS = 30


def build_pod(
    job: MSJob, member: Member, *, workers: int, host: str, attempt: int, restarts: int, options: OperatorOptions
) -> dict[str, Any]:
    """Return the manifest for a member's pod.

    Args:
        job: The job, as read from the API server (with a uid).
        member: The member, in a topology whose scheduler binds `OWN_ADDRESS`.
        workers: The gang's worker count.
        host: The scheduler's address; empty for a job with one worker.
        attempt: The gang's number.
        restarts: The job's counted restarts.
        options: The operator's options.
    """
    template = copy.deepcopy(job.get_replica_spec(member.replica_type).template)
    metadata: dict[str, Any] = dict(template.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), **member.labels, ATTEMPT_LABEL: str(attempt)}
    annotations = {
        **(metadata.get("annotations") or {}),
        **make_launch_annotations(workers=workers, host=host, restarts=restarts),
    }
    spec: dict[str, Any] = template["spec"]
    # A member cannot rejoin a running MindSpore cluster: the whole gang restarts.
    spec["restartPolicy"] = "Never"
    add_tolerations(spec)
    if not options.istio_sidecar:
        labels.setdefault(ISTIO_INJECT, "false")
        annotations.setdefault(ISTIO_INJECT, "false")
    if job.topology_key:
        add_affinity(job, spec, job.topology_key)
    _add_to_pod_group(job, member, spec, labels, annotations, options)
    if uses_worker_template(job, member):
        drop_devices(spec)
    for container in spec["containers"]:
        if container.get("name") == CONTAINER_NAME:
            container["env"] = merge_env(member.environment, container.get("env") or [])
            if member.replica_type == WORKER and member.index == 0:
                # The operator reads the progress from the log.
                container["env"].append({"name": PROGRESS_VARIABLE, "value": "-"})
            # The pod's status then has a failure's last lines.
            container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if options.pod_security == "restricted":
        restrict_pod(spec)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": member.name,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [make_owner_reference(job)],
        },
        "spec": spec,
    }


def make_launch_annotations(*, workers: int, host: str, restarts: int) -> dict[str, str]:
    """Return the annotations that a later decision reads from a pod; for the arguments see `build_pod`."""
    annotations = {RESTARTS_ANNOTATION: str(restarts), WORKERS_ANNOTATION: str(workers)}
    return {**annotations, HOST_ANNOTATION: host} if host else annotations


def list_members(job: MSJob, host: str, port: int, workers: int | None = None) -> tuple[Member, ...]:
    """Return a job's members with their addresses on a cluster.

    Args:
        job: A valid job.
        host: The Service's cluster IP.
        port: The scheduler's port.
        workers: The gang's worker count; default the requested count.
    """
    return build_topology(job, Endpoints(host, port, OWN_ADDRESS), workers).members


def make_owner_reference(job: MSJob) -> dict[str, Any]:
    """Return the owner reference for a job's objects."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.name,
        "uid": str(job.metadata.get("uid", "")),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def merge_env(member: Mapping[str, str], template: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a container's variables: the member's first, so that the template's can refer to them.

    Args:
        member: The member's variables. Topology variables replace the template's, for others the template's value is
            used; with none, all the template's stay.
        template: The template's EnvVars.
    """
    own = {item.get("name") for item in template} - set(VARIABLES)
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": OWN_ADDRESS}}}
        if value == OWN_ADDRESS
        else {"name": name, "value": value}
        for name, value in member.items()
        if name not in own
    ]
    return [*env, *(copy.deepcopy(item) for item in template if not member or item.get("name") not in VARIABLES)]


def list_replaced_env(job: MSJob, members: tuple[Member, ...]) -> list[str]:
    """Return a sentence for each template variable that differs from the member's, and is replaced.

    Args:
        job: The job.
        members: The job's members, from `list_members`.
    """
    sentences: list[str] = []
    for kind, spec in job.ms_replica_specs.items():
        own = [member.environment for member in members if member.replica_type == kind]
        for item in spec.container.get("env") or []:
            name = item.get("name")
            if not own or not own[0] or name not in VARIABLES:
                continue
            right = {environment.get(name) for environment in own}
            if item.get("valueFrom") is None and right == {item.get("value")}:
                continue
            found = "valueFrom" if item.get("valueFrom") is not None else repr(item.get("value"))
            sentences.append(
                f"spec.msReplicaSpecs.{kind}: env {name} ({found}) is replaced, since the operator gives each member "
                "its own; remove it from the template"
            )
    return sentences


def get_memory_limit(job: MSJob, replica_type: str) -> str:
    """Return the memory limit of a replica type's training container as a quantity; empty without one."""
    resources = job.get_replica_spec(replica_type).container.get("resources") or {}
    return str((resources.get("limits") or {}).get("memory") or "")


def add_affinity(job: MSJob, spec: dict[str, Any], topology_key: str) -> None:
    """Require nodes with the same label value for all pods in a job, in addition to the template's affinity."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    near = affinity["podAffinity"] = dict(affinity.get("podAffinity") or {})
    term = {"topologyKey": topology_key, "labelSelector": {"matchLabels": {JOB_LABEL: job.name}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near[required] = [*(near.get(required) or []), term]


def add_tolerations(spec: dict[str, Any]) -> None:
    """Limit the time that a pod stays on a node that no longer reports, unless the template has a limit."""
    tolerations = list(spec.get("tolerations") or [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            item.get("key") in (key, None, "") and item.get("effect") in ("NoExecute", None, "") for item in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_SECONDS}
            )
    spec["tolerations"] = tolerations


def _add_to_pod_group(
    job: MSJob,
    member: Member,
    spec: dict[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
    options: OperatorOptions,
) -> None:
    if options.gang_scheduler == "none":
        return
    spec["schedulerName"] = spec.get("schedulerName") or options.scheduler_name
    if options.gang_scheduler == "volcano":
        annotations[VOLCANO_GROUP] = job.name
        annotations[VOLCANO_TASK] = member.replica_type.lower()
    else:
        labels[SCHEDULER_PLUGINS_GROUP] = job.name
