"""The number of workers of an elastic job on a cluster. Pure.

- **Shrink**: a gang that starts lacks members which the scheduler or a quota refuses. When they still do after
  graceSeconds, it starts again with the workers that have a node, at least minReplicas. A member other than a worker
  that has no node counts as a missing worker, whose node it gets.
- **Grow**: a gang that has run with fewer workers than requested for ten times graceSeconds gets a probe for each
  missing worker: a pod with the worker's resources and constraints that does nothing. When all probes have a node, or
  graceSeconds after the first has one, the gang starts again with as many more workers. The delay bounds the cost of a
  growth that fails, and the pending probes make an autoscaler add nodes.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kfp_mindspore.msjob.elastic import (
    decide_workers,
    get_elastic_grace_seconds,
    get_minimum_workers,
    get_requested_workers,
)
from kfp_mindspore.msjob.names import ATTEMPT_LABEL, REPLICA_TYPE_LABEL, ROLE_LABEL, WORKER
from kfp_mindspore.msjob.topology import Member, make_labels
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.observed import PROBE, RESTARTS_ANNOTATION, UNSCHEDULABLE, PodView
from kfp_mindspore.operator.options import Options
from kfp_mindspore.operator.pods import ISTIO_INJECT, add_affinity, make_owner_reference
from kfp_mindspore.operator.security import restrict_pod

# Of graceSeconds: the least time that a gang runs before it probes for capacity.
_STABLE_GRACES = 10
# Fields of a container that a node is chosen by; the others could keep a probe from starting, or start work.
_PROBE_FIELDS = ("name", "image", "imagePullPolicy", "resources", "ports", "securityContext")


class Scaling(NamedTuple):
    """A decision.

    Attributes:
        workers: The number of workers that the gang should have.
        due: When to decide again at the latest; None for no time.
        reason: Why the number changes, in a sentence; empty for no change.
    """

    workers: int
    due: datetime.datetime | None = None
    reason: str = ""


def get_workers(job: MSJob, stored: int | None) -> int:
    """Return the number of workers of the present attempt.

    Args:
        job: A valid job.
        stored: The number in its status; None for the requested number.
    """
    requested = get_requested_workers(job)
    return requested if stored is None else max(get_minimum_workers(job), min(stored, requested))


def decide_shrink(
    job: MSJob, members: Sequence[Member], pods: Mapping[str, PodView], workers: int, now: datetime.datetime
) -> Scaling:
    """Decide the number of workers of a gang that starts.

    Args:
        job: A valid job.
        members: Its members.
        pods: The present attempt's pods by name.
        workers: Number of workers of the present attempt.
        now: The present time.
    """
    created = [pod.created for pod in pods.values() if pod.created is not None]
    missing = [member.name for member in members if _is_missing(pods.get(member.name))]
    available = workers - len(missing)
    if job.elastic_policy is None or not missing or not created or available < get_minimum_workers(job):
        return Scaling(workers)
    grace = get_elastic_grace_seconds(job)
    seconds = (now - min(created)).total_seconds()
    decided = decide_workers(job, current=workers, available=available, missing_seconds=seconds)
    if decided == workers:
        return Scaling(workers, min(created) + datetime.timedelta(seconds=grace))
    return Scaling(decided, None, f"{', '.join(missing)} got no node within {grace:g} s")


def decide_growth(job: MSJob, probes: Iterable[PodView], workers: int, now: datetime.datetime) -> Scaling:
    """Decide the number of workers of a gang that runs.

    Args:
        job: A valid job.
        probes: Its probes.
        workers: Number of workers of the present attempt.
        now: The present time.
    """
    scheduled = [probe.scheduled_at for probe in probes if probe.scheduled_at is not None and not probe.deleting]
    if not scheduled:
        return Scaling(workers)
    settled = min(scheduled) + datetime.timedelta(seconds=get_elastic_grace_seconds(job))
    if workers + len(scheduled) < get_requested_workers(job) and now < settled:
        return Scaling(workers, settled)
    decided = decide_workers(job, current=workers, available=workers + len(scheduled))
    return Scaling(decided, None, f"there are nodes for {decided - workers} more")


def list_probes(
    job: MSJob, workers: int, running_since: datetime.datetime, now: datetime.datetime
) -> tuple[list[int], datetime.datetime | None]:
    """Return the indices of the workers to probe for, and when they become due if they are not yet.

    Args:
        job: A valid job.
        workers: Number of workers of the present attempt.
        running_since: When its gang has started to run.
        now: The present time.
    """
    missing = list(range(workers, get_requested_workers(job)))
    due = running_since + datetime.timedelta(seconds=_STABLE_GRACES * get_elastic_grace_seconds(job))
    if not missing or now >= due:
        return missing, None
    return [], due


def name_probe(job_name: str, index: int) -> str:
    """Return the name of the probe for a worker."""
    return f"{job_name}-{PROBE}-{index}"


def build_probe(job: MSJob, index: int, *, attempt: int, restarts: int, options: Options) -> dict[str, Any]:
    """Return the manifest of a probe: a pod that a node is chosen for as for a worker, and that ends at once.

    Args:
        job: Its job.
        index: Index of the worker.
        attempt: The number of the gang.
        restarts: The job's counted restarts.
        options: The operator's options.
    """
    template = copy.deepcopy(job.ms_replica_specs[WORKER].template)
    metadata: dict[str, Any] = dict(template.get("metadata") or {})
    spec: dict[str, Any] = template["spec"]
    spec.pop("initContainers", None)
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    spec["containers"] = [
        {**{name: item[name] for name in _PROBE_FIELDS if name in item}, "command": ["true"]}
        for item in spec["containers"]
    ]
    if job.topology_key:
        add_affinity(job, spec, job.topology_key)
    if options.gang_scheduler != "none":
        # Without a PodGroup: a probe is not part of the gang.
        spec["schedulerName"] = spec.get("schedulerName") or options.scheduler_name
    if options.pod_security == "restricted":
        restrict_pod(spec)
    labels = {**make_labels(job.name, WORKER, index), REPLICA_TYPE_LABEL: PROBE, ATTEMPT_LABEL: str(attempt)}
    labels.pop(ROLE_LABEL, None)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name_probe(job.name, index),
            "namespace": job.namespace,
            "labels": {**(metadata.get("labels") or {}), ISTIO_INJECT: "false", **labels},
            "annotations": {
                **(metadata.get("annotations") or {}),
                ISTIO_INJECT: "false",
                RESTARTS_ANNOTATION: str(restarts),
            },
            "ownerReferences": [make_owner_reference(job)],
        },
        "spec": spec,
    }


def _is_missing(pod: PodView | None) -> bool:
    return pod is None or (pod.phase == "Pending" and pod.waiting_reason.startswith(UNSCHEDULABLE))
