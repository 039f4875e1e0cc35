"""Operator options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.options import option

GangScheduler = Literal["none", "volcano", "scheduler-plugins"]
GANG_SCHEDULERS: tuple[GangScheduler, ...] = ("none", "volcano", "scheduler-plugins")
SCHEDULER_NAMES: dict[GangScheduler, str] = {
    "none": "",
    "volcano": "volcano",
    "scheduler-plugins": "scheduler-plugins-scheduler",
}
PodSecurity = Literal["restricted", "none"]
POD_SECURITY: tuple[PodSecurity, ...] = ("restricted", "none")
MANAGER = "mindspore.gitee.com/msjob-controller"


@dataclass(frozen=True)
class OperatorOptions:
    """The operator's options, the same for all jobs.

    Attributes:
        manager: The `runPolicy.managedBy` value for this operator; also the default for jobs without one.
        istio_sidecar: Whether Istio may inject its sidecar into job pods. Off by default: a sidecar blocks traffic
            between members before it is ready, and mutual TLS breaks traffic by pod IP.
        gang_scheduler: `none`, `volcano` or `scheduler-plugins`: admits all pods in a job, or none.
        scheduler_name: The pods' schedulerName with a gang scheduler; empty for its default.
        kueue: Whether jobs with a queue label wait for Kueue's admission; without it they get no pods.
        pod_security: `restricted` adds what that Pod Security level requires to templates; `none` adds nothing.
        failure_grace_seconds: Seconds between SIGTERM and SIGKILL for a failed member's peers.
        log_lines: How many last lines from a failed member are kept in the status.
    """

    manager: str = MANAGER
    istio_sidecar: bool = False
    gang_scheduler: GangScheduler = option("none", enum=GANG_SCHEDULERS)
    scheduler_name: str = ""
    kueue: bool = False
    pod_security: PodSecurity = option("restricted", enum=POD_SECURITY)
    failure_grace_seconds: int = 1
    log_lines: int = 10

    def __post_init__(self) -> None:
        if self.gang_scheduler not in GANG_SCHEDULERS:
            known = ", ".join(GANG_SCHEDULERS)
            raise ValueError(f"gang_scheduler must be one of {known}, got {self.gang_scheduler!r}")
        if self.pod_security not in POD_SECURITY:
            raise ValueError(f"pod_security must be one of {', '.join(POD_SECURITY)}, got {self.pod_security!r}")
        if self.failure_grace_seconds < 1:
            # 0 deletes the pod from the API before its processes have ended.
            raise ValueError(f"failure_grace_seconds must be ≥ 1, got {self.failure_grace_seconds}")
        if not self.scheduler_name:
            object.__setattr__(self, "scheduler_name", SCHEDULER_NAMES[self.gang_scheduler])


_POD_GROUPS: dict[GangScheduler, Resource] = {
    "volcano": Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup"),
    "scheduler-plugins": Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup"),
}


def get_pod_groups(gang_scheduler: GangScheduler) -> Resource | None:
    """Return a gang scheduler's PodGroup resource, or None without one."""
    return _POD_GROUPS.get(gang_scheduler)
