"""From a job's member to its pod. Pure.

Of several processes in one pod: `msrun` in the template's command reads MS_SCHED_HOST, MS_SCHED_PORT and MS_NODE_ID of
the pod as `--master_addr`, `--master_port` and `--node_rank`, and sets MS_* anew for the processes that it starts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.msjob.names import ATTEMPT_LABEL, CONTAINER_NAME, JOB_LABEL, SCHEDULER
from kfp_mindspore.msjob.topology import VARIABLES, Endpoints, Member, build_topology
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.observed import HOST_ANNOTATION, RESTARTS_ANNOTATION, WORKERS_ANNOTATION
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.quantities import add_up, keep_largest

ISTIO_INJECT = "sidecar.istio.io/inject"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
SCHEDULER_PLUGINS_GROUP = "scheduling.x-k8s.io/pod-group"
# The scheduler learns its own address only when it has one.
OWN_ADDRESS = "status.podIP"


def build_pod(
    job: MSJob, member: Member, *, host: str, attempt: int, restarts: int, options: Options
) -> dict[str, Any]:
    """Return a member's pod on the wire.

    Args:
        job: Its job, as read from the API server (with a uid).
        member: The member, of a layout whose scheduler binds `OWN_ADDRESS`.
        host: The scheduler's address; empty for a job of one worker.
        attempt: The number of the gang.
        restarts: The job's counted restarts.
        options: The operator's choices.
    """
    template = copy.deepcopy(member.spec.template)
    metadata: dict[str, Any] = dict(template.get("metadata") or {})
    labels = {**(metadata.get("labels") or {}), **member.labels, ATTEMPT_LABEL: str(attempt)}
    annotations = {
        **(metadata.get("annotations") or {}),
        RESTARTS_ANNOTATION: str(restarts),
        WORKERS_ANNOTATION: str(job.workers),
    }
    if host:
        annotations[HOST_ANNOTATION] = host
    spec: dict[str, Any] = template["spec"]
    # A member cannot rejoin a cluster that runs: what comes after its end is the whole gang's affair.
    spec["restartPolicy"] = "Never"
    if not options.istio_sidecar:
        labels.setdefault(ISTIO_INJECT, "false")
        annotations.setdefault(ISTIO_INJECT, "false")
    if job.topology_key:
        _keep_together(job, spec, job.topology_key)
    _join_group(job, member, spec, labels, annotations, options)
    for container in spec["containers"]:
        if container.get("name") == CONTAINER_NAME:
            container["env"] = merge_env(member.environment, container.get("env") or [])
            # So the last lines are in the pod's status when it fails, without another question.
            container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
        if _borrows_template(job, member):
            _drop_devices(container)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": member.name,
            "namespace": job.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [make_owner(job)],
        },
        "spec": spec,
    }


def lay_out(job: MSJob, host: str, port: int) -> tuple[Member, ...]:
    """Return a job's members as they are on a cluster.

    Args:
        job: A valid job.
        host: The Service's cluster IP.
        port: The scheduler's port.
    """
    return build_topology(job, Endpoints(host, port, OWN_ADDRESS)).members


def make_owner(job: MSJob) -> dict[str, Any]:
    """Return the owner reference of what belongs to a job."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.name,
        "uid": str(job.metadata.get("uid", "")),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def merge_env(ours: Mapping[str, str], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a container's variables: ours first, so that theirs can refer to them; theirs of the same names go.

    Args:
        ours: The member's MS_*; with none, all of theirs stay.
        theirs: The template's list of EnvVars.
    """
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": OWN_ADDRESS}}}
        if value == OWN_ADDRESS
        else {"name": name, "value": value}
        for name, value in ours.items()
    ]
    return [*env, *(copy.deepcopy(item) for item in theirs if not ours or item.get("name") not in VARIABLES)]


def find_refused_env(job: MSJob, members: tuple[Member, ...]) -> list[str]:
    """Return a sentence for each variable of a template that would tear the job apart, and is replaced.

    Args:
        job: The job.
        members: Its members, from `lay_out`.
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


def read_requests(job: MSJob, member: Member) -> dict[str, str]:
    """Return what a member's pod asks of a node, resource by resource.

    Args:
        job: Its job.
        member: The member.
    """
    totals = []
    for key in ("containers", "initContainers"):
        containers = copy.deepcopy(member.spec.template["spec"].get(key) or [])
        for container in containers:
            if _borrows_template(job, member):
                _drop_devices(container)
        resources = [container.get("resources") or {} for container in containers]
        totals.append([{**(item.get("limits") or {}), **(item.get("requests") or {})} for item in resources])
    # Init containers run one after the other, before the rest.
    return keep_largest([add_up(totals[0]), *totals[1]])


def _borrows_template(job: MSJob, member: Member) -> bool:
    return member.replica_type == SCHEDULER and SCHEDULER not in job.ms_replica_specs


def _keep_together(job: MSJob, spec: dict[str, Any], topology_key: str) -> None:
    """Require nodes with the same value of a label for all pods of a job, beside what the template requires."""
    affinity = spec["affinity"] = dict(spec.get("affinity") or {})
    near = affinity["podAffinity"] = dict(affinity.get("podAffinity") or {})
    term = {"topologyKey": topology_key, "labelSelector": {"matchLabels": {JOB_LABEL: job.name}}}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near[required] = [*(near.get(required) or []), term]


def _join_group(
    job: MSJob,
    member: Member,
    spec: dict[str, Any],
    labels: dict[str, str],
    annotations: dict[str, str],
    options: Options,
) -> None:
    if options.gang_scheduler == "none":
        return
    spec["schedulerName"] = spec.get("schedulerName") or options.scheduler_name
    if options.gang_scheduler == "volcano":
        annotations[VOLCANO_GROUP] = job.name
        annotations[VOLCANO_TASK] = member.replica_type.lower()
    else:
        labels[SCHEDULER_PLUGINS_GROUP] = job.name


def _drop_devices(container: dict[str, Any]) -> None:
    """Take devices such as `huawei.com/Ascend910` off a scheduler that only borrows the workers' template."""
    resources = dict(container.get("resources") or {})
    for key in ("limits", "requests"):
        if key in resources:
            resources[key] = {name: amount for name, amount in (resources[key] or {}).items() if "/" not in name}
    if resources:
        container["resources"] = resources
