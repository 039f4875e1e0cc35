"""AscendJob for MindCluster's Ascend operator (mindxdl.gitee.com/v1).

The operator sets MS_ROLE, MS_SCHED_HOST, MS_SCHED_PORT and MS_NODE_RANK. MS_LOCAL_WORKER is a pod's NPU count,
MS_WORKER_NUM the job's: a command that trains on several NPUs per pod starts its processes by msrun. The operator
writes the rank table into the volume `ranktable`.
"""

from __future__ import annotations

import copy
from typing import Any

from kfp_mindspore.kube.devices import read_devices
from kfp_mindspore.msjob.api.names import PORT_NAME, SCHEDULER, WORKER, resolve_replica_type
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.topology import get_scheduler_port
from kfp_mindspore.msjob.kinds.common import (
    Fields,
    JobKind,
    Manifest,
    Notes,
    build_job_document,
    check_available,
    copy_metadata,
    copy_template,
    count_devices,
    drop_empty,
    get_container,
    get_container_path,
    note_dropped,
    read_container,
    read_scheduling,
    refuse_parameter_servers,
    remove_variables,
    set_variables,
)
from kfp_mindspore.settings import WORKER_COUNT_VARIABLE

_NAME = "AscendJob"
_RUN_POLICY = ("activeDeadlineSeconds", "backoffLimit", "cleanPodPolicy", "schedulingPolicy", "ttlSecondsAfterFinished")
_SCHEDULING = ("minAvailable", "minResources", "priorityClass", "queue")
_KEPT = (
    *(f"runPolicy.{name}" for name in _RUN_POLICY if name != "schedulingPolicy"),
    *(f"runPolicy.schedulingPolicy.{name}" for name in _SCHEDULING),
    "successPolicy",
)
_CONTAINER, _PORT = "ascend", "ascendjob-port"
_DEVICE = "huawei.com/Ascend910"
_FRAMEWORK, _MINDSPORE = "framework", "mindspore"
_CHIP, _DEFAULT_CHIP = "ring-controller.atlas", "ascend-910"
_GANG_SCHEDULER = "volcano"
_LOCAL_COUNT = "MS_LOCAL_WORKER"
_TABLE = "ranktable"
_TABLE_VARIABLE = "RANK_TABLE_FILE"
_TABLE_DIRECTORY = "/user/serverid/devindex/config"
_SPECS, _READ_SPECS = "spec.msReplicaSpecs", "spec.replicaSpecs"


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return a job's AscendJob."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, _KEPT, notes)
    own = job.to_dict()["spec"].get("runPolicy", {})
    run_policy = {name: value for name, value in own.items() if name in _RUN_POLICY}
    types = [WORKER] if job.workers == 1 and SCHEDULER not in job.ms_replica_specs else [SCHEDULER, WORKER]
    total = job.workers + len(types) - 1
    given = {name: value for name, value in (own.get("schedulingPolicy") or {}).items() if name in _SCHEDULING}
    check_available(given.get("minAvailable"), total, "spec.runPolicy.schedulingPolicy", notes)
    scheduling = {"minAvailable": total, "queue": "default", **given}
    replicas = {kind: _build_replica(job, kind, notes) for kind in types}
    metadata = copy_metadata(job.metadata)
    labels = metadata.setdefault("labels", {})
    if labels.get(_FRAMEWORK, _MINDSPORE) != _MINDSPORE:
        notes.change(
            f"metadata.labels.{_FRAMEWORK}", f"{labels[_FRAMEWORK]!r} is now {_MINDSPORE!r}", "it selects MS_*"
        )
    labels[_FRAMEWORK] = _MINDSPORE
    _add_chip(metadata, replicas, notes)
    return [
        {
            "apiVersion": KIND.api_version,
            "kind": KIND.kind,
            "metadata": metadata,
            "spec": {
                "schedulerName": _GANG_SCHEDULER,
                "runPolicy": {**run_policy, "schedulingPolicy": scheduling},
                "successPolicy": job.success_policy or "",
                "replicaSpecs": replicas,
            },
        }
    ]


def _add_chip(metadata: Manifest, replicas: dict[str, Manifest], notes: Notes) -> None:
    """Give job and pods the NPU type label where they lack it: the job's, else a template's."""
    templates = {f"{_SPECS}.{kind}.template.metadata": replica["template"] for kind, replica in replicas.items()}
    owners = {"metadata": metadata, **{path: item.setdefault("metadata", {}) for path, item in templates.items()}}
    found = [owner["labels"][_CHIP] for owner in owners.values() if _CHIP in (owner.get("labels") or {})]
    chip = found[0] if found else _DEFAULT_CHIP
    for path, owner in owners.items():
        if _CHIP not in (owner.get("labels") or {}):
            owner["labels"] = {**(owner.get("labels") or {}), _CHIP: chip}
            notes.change(f"{path}.labels.{_CHIP}", f"{chip} is added", "it is the type of the NPU, such as ascend-910b")


def _build_replica(job: JobManifest, kind: str, notes: Notes) -> Manifest:
    template = copy_template(job, kind)
    container = get_container(template)
    container["name"] = _CONTAINER
    ports = [item for item in container.get("ports") or [] if item.get("name") != PORT_NAME]
    container["ports"] = [*ports, {"name": _PORT, "containerPort": get_scheduler_port(job)}]
    if kind == WORKER:
        path = get_container_path(_SPECS, WORKER)
        # A slice by npu-core alone is a device too.
        if not read_devices(container, path).names:
            notes.change(f"{path}.resources", f"{_DEVICE}: 1 is added", "an AscendJob trains on NPUs")
            resources = container.setdefault("resources", {})
            for key in ("limits", "requests"):
                resources[key] = {**(resources.get(key) or {}), _DEVICE: 1}
        cards = max(1, count_devices(container, path, notes))
        table = f"{_TABLE_DIRECTORY}/hccl.json"
        variables = {_LOCAL_COUNT: str(cards), WORKER_COUNT_VARIABLE: str(cards * job.workers), _TABLE_VARIABLE: table}
        set_variables(container, variables, path, notes)
        if _TABLE not in [item.get("name") for item in template["spec"].get("volumes") or []]:
            mount = {"name": _TABLE, "mountPath": _TABLE_DIRECTORY}
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
            source = {"path": f"/user/mindx-dl/ranktable/{job.namespace}.{job.name}"}
            volume = {"name": _TABLE, "hostPath": source}
            template["spec"]["volumes"] = [*(template["spec"].get("volumes") or []), volume]
    own = job.ms_replica_specs.get(kind)
    policy = (own or job.ms_replica_specs[WORKER]).effective_restart_policy
    return {"replicas": (own.replicas if own else 1) or 1, "restartPolicy": policy, "template": template}


def read(job: Manifest, others: list[Manifest], notes: Notes) -> Manifest:
    """Return the MSJob document for an AscendJob."""
    spec = notes.read(job["spec"], "spec")
    spec.drop("the operator of MSJob sets the scheduler of gangs", schedulerName=_GANG_SCHEDULER)
    metadata = copy.deepcopy(job["metadata"])
    labels = metadata.get("labels") or {}
    if (framework := labels.pop(_FRAMEWORK, _MINDSPORE)) != _MINDSPORE:
        notes.errors.append(f"metadata.labels.{_FRAMEWORK}: must be {_MINDSPORE}, got {framework!r}")
    replicas: dict[str, Any] = {}
    for name, item in spec.take("replicaSpecs", {}).items():
        kind = resolve_replica_type(name)
        if kind not in (SCHEDULER, WORKER) or kind in replicas:
            wrong = f"must be {SCHEDULER} or {WORKER} of a MindSpore job, each once"
            notes.errors.append(f"{_READ_SPECS}.{name}: {wrong}")
            continue
        replica = notes.read(item, f"{_READ_SPECS}.{name}")
        replicas[kind] = {
            "replicas": replica.take("replicas", 1),
            "restartPolicy": replica.take("restartPolicy", "Never"),
            "template": _read_template(replica, notes),
        }
    run_policy = dict(spec.take("runPolicy", {}))
    total = sum(item["replicas"] for item in replicas.values())
    scheduling = run_policy.pop("schedulingPolicy", None) or {}
    run_policy["schedulingPolicy"] = read_scheduling(scheduling, total, "spec.runPolicy.schedulingPolicy", notes)
    return build_job_document(
        metadata, replicas, runPolicy=drop_empty(run_policy), successPolicy=spec.take("successPolicy")
    )


def _read_template(replica: Fields, notes: Notes) -> Manifest:
    template, path = replica.take_template(), f"{replica.path}.template"
    container = read_container(template, path, notes, _CONTAINER)
    for port in container.get("ports") or []:
        if port.get("name") == _PORT:
            port["name"] = PORT_NAME
    own = (_LOCAL_COUNT, _TABLE_VARIABLE, "MS_NODE_RANK")
    remove_variables(container, f"{path}.spec.containers[0]", notes, own)
    mounts, volumes = container.pop("volumeMounts", None) or [], template["spec"].pop("volumes", None) or []
    if _TABLE in [item.get("name") for item in volumes]:
        notes.change(f"{path}.spec.volumes", f"{_TABLE} dropped", "only the Ascend operator writes the rank table")
    for owner, field, items in ((container, "volumeMounts", mounts), (template["spec"], "volumes", volumes)):
        if rest := [item for item in items if item.get("name") != _TABLE]:
            owner[field] = rest
    return template


KIND = JobKind(_NAME, "mindxdl.gitee.com/v1", _NAME, "Ascend operator of MindCluster", export, read)
