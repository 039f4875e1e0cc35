"""An elastic job's worker count on a cluster. Pure.

- **Shrink**: a gang that starts lacks members which the scheduler or a quota refuses. When they still do after
  graceSeconds, it starts again with the workers that have a node, at least minReplicas. A member other than a worker
  that has no node counts as a missing worker, whose node it gets.
- **Grow**: a gang that has run with fewer workers than requested for ten times graceSeconds gets a probe for each
  missing member: a pod with the member's resources and constraints that does nothing. When all probes have a node, or
  graceSeconds after the first has one, the gang starts again with as many more workers. The delay bounds what a failed
  growth costs, and the pending probes make an autoscaler add nodes.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kfp_mindspore.msjob.api.names import REPLICA_TYPE_LABEL, ROLE_LABEL, WORKER
from kfp_mindspore.msjob.decisions.elastic import (
    decide_workers,
    get_elastic_grace_seconds,
    get_minimum_workers,
    get_requested_workers,
)
from kfp_mindspore.msjob.decisions.topology import Member
from kfp_mindspore.msjob.types import MSJob
from kfp_mindspore.operator.decisions.observed import PROBE, PodView
from kfp_mindspore.operator.decisions.pods import build_pod, list_members
from kfp_mindspore.operator.options import OperatorOptions

# Multiple of graceSeconds that a gang runs before it probes for capacity.
_STABLE_GRACES = 10
# Container fields that decide the node; the others could keep a probe from starting, or start work.
_PROBE_FIELDS = ("name", "image", "imagePullPolicy", "resources", "ports", "securityContext")


class Scaling(NamedTuple):
    """A decision.

    Attributes:
        workers: How many workers the gang should have.
        due: When to decide again at the latest; None for no time.
        reason: Why the number changes, in a sentence; empty for no change.
    """

    workers: int
    due: datetime.datetime | None = None
    reason: str = ""


def get_workers(job: MSJob, stored: int | None) -> int:
    """Return the present attempt's worker count.

    Args:
        job: A valid job.
        stored: The number in the status; None for the requested number.
    """
    requested = get_requested_workers(job)
    return requested if stored is None else max(get_minimum_workers(job), min(stored, requested))


def decide_shrink(
    job: MSJob, members: Sequence[Member], pods: Mapping[str, PodView], workers: int, now: datetime.datetime
) -> Scaling:
    """Decide how many workers a starting gang has.

    Args:
        job: A valid job.
        members: The job's members.
        pods: The present attempt's pods by name.
        workers: The present attempt's worker count.
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


def decide_growth(
    job: MSJob, missing: Sequence[Member], probes: Iterable[PodView], workers: int, now: datetime.datetime
) -> Scaling:
    """Decide how many workers a running gang has.

    Args:
        job: A valid job.
        missing: The members that it lacks, from `list_missing_members`.
        probes: The job's probes.
        workers: The present attempt's worker count.
        now: The present time.
    """
    times = {probe.name: probe.scheduled_at for probe in probes if probe.scheduled_at is not None}
    found = [member for member in missing if name_probe(job, member) in times]
    if not found:
        return Scaling(workers)
    settled = min(times.values()) + datetime.timedelta(seconds=get_elastic_grace_seconds(job))
    if len(found) < len(missing) and now < settled:
        return Scaling(workers, settled)
    more = [member for member in found if member.replica_type == WORKER]
    if len(found) - len(more) < sum(member.replica_type != WORKER for member in missing):
        # A gang with one worker has no scheduler: it cannot grow without a node for one.
        return Scaling(workers)
    decided = decide_workers(job, current=workers, available=workers + len(more))
    return Scaling(decided, None, f"there are nodes for {decided - workers} more")


def list_missing_members(job: MSJob, members: Iterable[Member], host: str, port: int, workers: int) -> list[Member]:
    """Return the members that a gang lacks, compared to a gang with the most workers that it may have.

    Args:
        job: A valid job.
        members: The present attempt's members.
        host: The Service's cluster IP.
        port: The scheduler's port.
        workers: The most workers.
    """
    names = {member.name for member in members}
    return [member for member in list_members(job, host, port, workers) if member.name not in names]


def get_probe_time(job: MSJob, running_since: datetime.datetime) -> datetime.datetime:
    """Return when a gang that lacks workers probes for capacity.

    Args:
        job: A valid job.
        running_since: When the gang has started to run.
    """
    return running_since + datetime.timedelta(seconds=_STABLE_GRACES * get_elastic_grace_seconds(job))


def name_probe(job: MSJob, member: Member) -> str:
    """Return the probe name for a member."""
    return f"{job.name}-{PROBE}-{member.replica_type.lower()}-{member.index}"


def build_probe(job: MSJob, member: Member, *, attempt: int, restarts: int, options: OperatorOptions) -> dict[str, Any]:
    """Return a probe's manifest: a pod that a node is chosen for as for a member, and that ends at once.

    Args:
        job: The job.
        member: The member.
        attempt: The gang's number.
        restarts: The job's counted restarts.
        options: The operator's options.
    """
    # Without a PodGroup: a probe does not belong to the gang.
    ungrouped = dataclasses.replace(options, gang_scheduler="none", scheduler_name="")
    pod = build_pod(job, member, workers=0, host="", attempt=attempt, restarts=restarts, options=ungrouped)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = name_probe(job, member)
    metadata["labels"][REPLICA_TYPE_LABEL] = PROBE
    metadata["labels"].pop(ROLE_LABEL, None)
    spec.pop("initContainers", None)
    spec["terminationGracePeriodSeconds"] = 0
    if options.scheduler_name:
        spec.setdefault("schedulerName", options.scheduler_name)
    spec["containers"] = [
        {**{name: item[name] for name in _PROBE_FIELDS if name in item}, "command": ["true"]}
        for item in spec["containers"]
    ]
    return pod


def _is_missing(pod: PodView | None) -> bool:
    return pod is None or (pod.phase == "Pending" and pod.is_unschedulable)
