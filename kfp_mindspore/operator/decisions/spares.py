"""A job's warm spares on a cluster: pods that have imported MindSpore and become members at the next restart. Pure.

A running pod's environment is fixed, but a volume with pod annotations is not: a spare waits for an annotation with the
topology variables. Its labels then name the member that it has become.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kfp_mindspore.msjob.api.names import ATTEMPT_LABEL, CONTAINER_NAME, WORKER
from kfp_mindspore.msjob.commands import has_python_arguments
from kfp_mindspore.msjob.decisions.requests import uses_worker_template
from kfp_mindspore.msjob.decisions.topology import VARIABLES, Member, make_labels
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.actions import Assign
from kfp_mindspore.operator.decisions.kueue import get_queue
from kfp_mindspore.operator.decisions.observed import SPARE, PodView
from kfp_mindspore.operator.decisions.pods import OWN_ADDRESS, build_pod, make_launch_annotations
from kfp_mindspore.operator.decisions.services import get_address
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.settings import PROGRESS_VARIABLE

# Seconds after a gang starts, whose own imports spares would delay on the same node.
SPARE_DELAY_SECONDS = 20
_ANNOTATION = "mindspore.gitee.com/assignment"
_VOLUME = "kfp-mindspore-spare"
_DIRECTORY = "/var/run/kfp-mindspore"
_MODULE = "kfp_mindspore.podside.spare"
# They would act on a process that waits.
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def name_spare(job: MSJob, attempt: int, number: int) -> str:
    """Return a spare's name: the number within the attempt in which it is created."""
    return f"{job.name}-{SPARE}-{attempt}-{number}"


def explain_no_spares(job: MSJob, options: OperatorOptions) -> str:
    """Return why a job cannot have warm spares; empty if it can.

    Args:
        job: A valid job.
        options: The operator's options.
    """
    container = job.ms_replica_specs[WORKER].container
    if get_queue({"metadata": job.metadata}):
        return "a queue admits only the members of a gang"
    if options.gang_scheduler != "none":
        return f"the gang scheduler {options.gang_scheduler} admits all members of a gang at once"
    argv = _get_command_line(container)
    if not re.fullmatch(r"python[\d.]*", argv[0].rpartition("/")[2] if argv else "") or not has_python_arguments(argv):
        return "the Worker's command must be `python SCRIPT` or `python -m MODULE`"
    if found := [name for name in _PROBES if container.get(name)]:
        return f"the Worker's container has {', '.join(found)}"
    text = json.dumps(job.ms_replica_specs[WORKER].template)
    if used := [name for name in VARIABLES if f"$({name})" in text]:
        return f"the Worker's template refers to $({used[0]}), which a spare does not have when it starts"
    return ""


def is_usable(pod: PodView) -> bool:
    """Return whether a spare can become a member: the container runs."""
    is_running = pod.phase == "Running" and not pod.is_finished and pod.exit_code is None
    return is_running and bool(pod.addresses) and not pod.deleting and not pod.reason


def describe_spares(pods: Iterable[PodView], wanted: int) -> str:
    """Return how many spares are usable, and what keeps others from running.

    Args:
        pods: The spares.
        wanted: Their wanted number.
    """
    pods = list(pods)
    problems = [
        f"{pod.name}: {pod.waiting.message if pod.waiting else (pod.log or (pod.message or pod.reason,))[-1]}"
        for pod in pods
        if pod.waiting or pod.exit_code is not None
    ]
    return f"{sum(map(is_usable, pods))}/{wanted}" + "".join(f"; {problem}" for problem in problems[:1])


def build_spare(
    job: MSJob, worker: Member, number: int, *, attempt: int, restarts: int, options: OperatorOptions
) -> dict[str, Any]:
    """Return a spare's manifest: a worker's pod that waits for an assignment.

    Args:
        job: The job, for which `explain_no_spares` returns nothing.
        worker: A worker.
        number: The spare's number within the attempt.
        attempt: The running gang's number.
        restarts: The job's counted restarts.
        options: The operator's options.
    """
    member = dataclasses.replace(
        worker,
        name=name_spare(job, attempt, number),
        replica_type=SPARE,
        environment={name: value for name, value in worker.environment.items() if name not in VARIABLES},
        labels=make_labels(job.name, SPARE, number),
    )
    pod = build_pod(job, member, workers=0, host="", attempt=attempt, restarts=restarts, options=options)
    spec = pod["spec"]
    source = {"path": "assignment", "fieldRef": {"fieldPath": f"metadata.annotations['{_ANNOTATION}']"}}
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": _VOLUME, "downwardAPI": {"items": [source]}}]
    for container in spec["containers"]:
        if container["name"] != CONTAINER_NAME:
            continue
        python, *words = _get_command_line(container)
        # Container arguments: the kubelet expands the template's $(VARIABLES) in them.
        flags = list(itertools.takewhile("-u".__eq__, words))
        container["command"] = [python, *flags, "-m", _MODULE, "--assignment", f"{_DIRECTORY}/assignment"]
        container["args"] = words[len(flags) :]
        mount = {"name": _VOLUME, "mountPath": _DIRECTORY, "readOnly": True}
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
    return pod


def can_take(job: MSJob, member: Member) -> bool:
    """Return whether a spare can become this member: the template is the workers'."""
    return member.replica_type == WORKER or uses_worker_template(job, member)


def build_assignment(spare: PodView, member: Member, *, workers: int, host: str, attempt: int, restarts: int) -> Assign:
    """Return the patch that makes a spare a member.

    Args:
        spare: A usable spare.
        member: The member.
        workers: The gang's worker count.
        host: The scheduler's address; empty for a job with one worker.
        attempt: The gang's number.
        restarts: The job's counted restarts.
    """
    environment = {
        name: get_address(spare, host) if value == OWN_ADDRESS else value
        for name, value in member.environment.items()
        if name in VARIABLES
    }
    if member.replica_type == WORKER and member.index == 0:
        environment[PROGRESS_VARIABLE] = "-"
    annotations = {
        **make_launch_annotations(workers=workers, host=host, restarts=restarts),
        _ANNOTATION: json.dumps(environment),
    }
    labels = {**member.labels, ATTEMPT_LABEL: str(attempt)}
    return Assign(spare.name, spare.uid, {"labels": labels, "annotations": annotations})


def _get_command_line(container: Mapping[str, Any]) -> list[str]:
    command = list(container.get("command") or [])
    return [*command, *(container.get("args") or [])] if command else []
