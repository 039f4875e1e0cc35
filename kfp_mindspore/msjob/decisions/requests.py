"""Resource requests of a job's pods. Pure."""

from __future__ import annotations

from kfp_mindspore.kube.devices import drop_devices
from kfp_mindspore.kube.quantities import max_resources, sum_resources
from kfp_mindspore.msjob.api.names import SCHEDULER
from kfp_mindspore.msjob.api.spec import JobManifest
from kfp_mindspore.msjob.decisions.topology import Member


def get_requests(job: JobManifest, member: Member) -> dict[str, str]:
    """Return a member pod's resource requests.

    Args:
        job: The job.
        member: The member.
    """
    totals = []
    pod = dict(job.get_replica_spec(member.replica_type).template["spec"])
    if uses_worker_template(job, member):
        drop_devices(pod)
    for key in ("containers", "initContainers"):
        resources = [container.get("resources") or {} for container in pod.get(key) or ()]
        totals.append([{**(item.get("limits") or {}), **(item.get("requests") or {})} for item in resources])
    # Init containers run one after the other, before the others.
    return max_resources([sum_resources(totals[0]), *totals[1]])


def uses_worker_template(job: JobManifest, member: Member) -> bool:
    """Return whether a member is a scheduler without its own template."""
    return member.replica_type == SCHEDULER and SCHEDULER not in job.ms_replica_specs
