"""AscendJob of MindCluster's Ascend operator (mindxdl.gitee.com/v1).

The operator sets MS_ROLE, MS_SCHED_HOST, MS_SCHED_PORT and MS_NODE_RANK. MS_LOCAL_WORKER is the number of NPUs of a
pod, MS_WORKER_NUM that of the job: a command that trains on several NPUs per pod starts its processes by msrun. The
operator writes the rank table into the volume `ranktable`.
"""

from __future__ import annotations

import copy
from typing import Any

from kfp_mindspore.msjob.kinds.common import (
    JobKind,
    Manifest,
    Notes,
    build_job_document,
    check_fields,
    copy_metadata,
    copy_template,
    count_devices,
    find_container,
    note_dropped,
    refuse_parameter_servers,
    remove_variables,
    set_variables,
)
from kfp_mindspore.msjob.names import CONTAINER_NAME, PORT_NAME, SCHEDULER, WORKER, resolve_replica_type
from kfp_mindspore.msjob.spec import JobManifest
from kfp_mindspore.msjob.topology import get_scheduler_port
from kfp_mindspore.settings import WORKER_COUNT_VARIABLE

_NAME = "AscendJob"
_KEPT = (
    *("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "schedulingPolicy"),
    *("successPolicy", "ttlSecondsAfterFinished"),
)
_CONTAINER, _PORT = "ascend", "ascendjob-port"
_DEVICE = "huawei.com/Ascend910"
_LABELS = {"framework": "mindspore", "ring-controller.atlas": "ascend-910"}
_LOCAL_COUNT = "MS_LOCAL_WORKER"
_TABLE = "ranktable"
_TABLE_VARIABLE = "RANK_TABLE_FILE"
_TABLE_DIRECTORY = "/user/serverid/devindex/config"


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return the AscendJob of a job."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, _KEPT, notes)
    run_policy = {name: value for name, value in job.to_dict()["spec"].get("runPolicy", {}).items() if name in _KEPT}
    types = [WORKER] if job.workers == 1 else [SCHEDULER, WORKER]
    total = job.workers + len(types) - 1
    scheduling = {"minAvailable": total, "queue": "default", **(run_policy.get("schedulingPolicy") or {})}
    return [
        {
            "apiVersion": KIND.api_version,
            "kind": KIND.kind,
            "metadata": copy_metadata(job, _LABELS),
            "spec": {
                "schedulerName": "volcano",
                "runPolicy": {**run_policy, "schedulingPolicy": scheduling},
                "successPolicy": job.success_policy or "",
                "replicaSpecs": {kind: _build_replica(job, kind, notes) for kind in types},
            },
        }
    ]


def _build_replica(job: JobManifest, kind: str, notes: Notes) -> Manifest:
    template = copy_template(job, kind)
    metadata = template.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), "ring-controller.atlas": _LABELS["ring-controller.atlas"]}
    container = find_container(template)
    container["name"] = _CONTAINER
    ports = [item for item in container.get("ports") or [] if item.get("name") != PORT_NAME]
    container["ports"] = [*ports, {"name": _PORT, "containerPort": get_scheduler_port(job)}]
    if kind == WORKER:
        if not count_devices(container):
            path = f"spec.msReplicaSpecs.{WORKER}.template.spec.containers[0].resources"
            notes.change(path, f"{_DEVICE}: 1 is added", "an AscendJob trains on NPUs")
            resources = container.setdefault("resources", {})
            for key in ("limits", "requests"):
                resources[key] = {**(resources.get(key) or {}), _DEVICE: 1}
        cards = count_devices(container)
        table = f"{_TABLE_DIRECTORY}/hccl.json"
        variables = {_LOCAL_COUNT: str(cards), WORKER_COUNT_VARIABLE: str(cards * job.workers), _TABLE_VARIABLE: table}
        set_variables(container, variables)
        container.setdefault("volumeMounts", []).append({"name": _TABLE, "mountPath": _TABLE_DIRECTORY})
        path = f"/user/mindx-dl/ranktable/{job.namespace}.{job.name}"
        template["spec"].setdefault("volumes", []).append({"name": _TABLE, "hostPath": {"path": path}})
    own = job.ms_replica_specs.get(kind)
    policy = (own or job.ms_replica_specs[WORKER]).restart_policy or "Never"
    return {"replicas": (own.replicas if own else 1) or 1, "restartPolicy": policy, "template": template}


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the document of the MSJob of an AscendJob."""
    spec = job["spec"]
    check_fields(spec, "spec", ("replicaSpecs", "runPolicy", "schedulerName", "successPolicy"), notes)
    replicas: dict[str, Any] = {}
    for name, replica in (spec.get("replicaSpecs") or {}).items():
        kind = resolve_replica_type(name)
        if kind not in (SCHEDULER, WORKER):
            notes.errors.append(f"spec.replicaSpecs.{name}: must be {SCHEDULER} or {WORKER} of a MindSpore job")
            continue
        template = copy.deepcopy(replica["template"])
        container = find_container(template, _CONTAINER)
        container["name"] = CONTAINER_NAME
        for port in container.get("ports") or []:
            if port.get("name") == _PORT:
                port["name"] = PORT_NAME
        remove_variables(container, (_LOCAL_COUNT, _TABLE_VARIABLE, "MS_NODE_RANK"))
        _remove_named(container, "volumeMounts", _TABLE)
        _remove_named(template["spec"], "volumes", _TABLE)
        labels = template.get("metadata", {}).get("labels") or {}
        labels.pop("ring-controller.atlas", None)
        replicas[kind] = {"restartPolicy": "Never", **replica, "template": template}
    metadata = copy.deepcopy(job["metadata"])
    for name in _LABELS:
        (metadata.get("labels") or {}).pop(name, None)
    run_policy = dict(spec.get("runPolicy") or {})
    return build_job_document(metadata, replicas, runPolicy=run_policy, successPolicy=spec.get("successPolicy"))


def _remove_named(owner: Manifest, field: str, name: str) -> None:
    rest = [item for item in owner.pop(field, None) or [] if item.get("name") != name]
    if rest:
        owner[field] = rest


KIND = JobKind(_NAME, "mindxdl.gitee.com/v1", _NAME, "Ascend operator of MindCluster", export, read)
