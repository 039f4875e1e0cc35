"""RayJob of KubeRay (ray.io/v1): a Ray cluster for the job, whose entry point trains by MindSporeTrainer.

The head's pod runs `python -m kfp_mindspore.ray.job`, which runs the job's Python command in each of Ray's workers. A
worker of the job is one pod.
"""

from __future__ import annotations

import copy
import shlex
from typing import Any

from kfp_mindspore.kube.devices import drop_devices
from kfp_mindspore.msjob.api.names import WORKER
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.elastic import get_minimum_workers, get_requested_workers
from kfp_mindspore.msjob.kinds.common import (
    JobKind,
    Manifest,
    Notes,
    convert_restart_policy,
    copy_metadata,
    copy_template,
    drop_empty,
    get_container,
    get_container_path,
    is_python,
    note_dropped,
    note_scheduler,
    refuse_parameter_servers,
    set_pod_restart_policy,
)

_NAME = "RayJob"
_SPECS = "spec.msReplicaSpecs"
_VERSION = "2.60.0"
_ENTRYPOINT = ["-m", "kfp_mindspore.ray.job"]
_KEPT = tuple(
    f"runPolicy.{name}" for name in ("activeDeadlineSeconds", "backoffLimit", "suspend", "ttlSecondsAfterFinished")
)
_DEFAULT_CPUS = "1"


def export(job: JobManifest, notes: Notes) -> list[Manifest]:
    """Return a job's RayJob."""
    refuse_parameter_servers(job, _NAME)
    note_dropped(job, _NAME, (*_KEPT, "elasticPolicy.minReplicas", "elasticPolicy.maxReplicas"), notes)
    note_scheduler(job, _NAME, notes)
    policy, elastic = job.effective_run_policy, job.elastic_policy
    template = copy_template(job, WORKER)
    set_pod_restart_policy(template, f"{_SPECS}.{WORKER}.template", notes)
    container = get_container(template)
    command = [*(container.pop("command", None) or ()), *(container.pop("args", None) or ())]
    path = get_container_path(_SPECS, WORKER)
    if not command or not is_python(command[0]):
        notes.errors.append(f"{path}.command: must be a Python command such as [python, train.py], got {command}")
        return []
    head = copy.deepcopy(template)
    drop_devices(head["spec"])
    workers, lowest = get_requested_workers(job), get_minimum_workers(job)
    restarts = convert_restart_policy(job, _NAME, notes)
    numbers = [f"--workers={workers}", f"--min-workers={lowest}", f"--max-failures={restarts}"]
    words = [str(command[0]), *_ENTRYPOINT, f"--name={job.name}", *numbers, "--", *map(str, command[1:])]
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(words),
        "suspend": policy.suspend or None,
        "activeDeadlineSeconds": policy.active_deadline_seconds,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        "rayClusterSpec": {
            "rayVersion": _VERSION,
            # Workers alone train: the head's pod has the driver.
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                "template": _rename(head, "ray-head"),
            },
            "workerGroupSpecs": [
                {
                    "groupName": WORKER.lower(),
                    "replicas": workers,
                    "minReplicas": lowest,
                    "maxReplicas": max(workers, (elastic and elastic.max_replicas) or workers),
                    "rayStartParams": {"num-cpus": _DEFAULT_CPUS},
                    "template": _rename(template, "ray-worker"),
                }
            ],
        },
    }
    metadata = copy_metadata(job.metadata)
    return [{"apiVersion": KIND.api_version, "kind": KIND.kind, "metadata": metadata, "spec": drop_empty(spec)}]


def _rename(template: Manifest, name: str) -> Manifest:
    """Put the training container first, where KubeRay expects Ray's, under another name."""
    containers = template["spec"]["containers"]
    own = get_container(template)
    containers.sort(key=lambda item: item is not own)
    own["name"] = name
    return template


KIND = JobKind(_NAME, "ray.io/v1", "RayJob", "RayJob of KubeRay whose Ray workers train", export, has_queue=True)
