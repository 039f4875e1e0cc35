"""Reasons why a job's pods do not run, as data: `status.waitingReason`, and how long a client waits for each."""

from __future__ import annotations

from dataclasses import dataclass

IMAGE_PULL = "ImagePullBackOff"
CONTAINER_CONFIG = "CreateContainerConfigError"
CONTAINER = "CreateContainerError"
UNSCHEDULABLE = "Unschedulable"
NO_NODE_FITS = "NoNodeFits"
UNBOUND_VOLUME = "UnboundVolume"
FORBIDDEN = "Forbidden"
QUOTA_EXCEEDED = "QuotaExceeded"
QUOTA_TOO_SMALL = "QuotaTooSmall"
REJECTED = "Rejected"
NAME_TAKEN = "NameTaken"
NAME_TERMINATING = "NameTerminating"
# Kueue has not admitted the job.
QUEUED = "Queued"
# The job names a Kueue queue, and its operator runs without --kueue.
QUEUE_IGNORED = "QueueIgnored"
# `status.waitingReason` values, which operators write.
WAITING_REASONS = (
    IMAGE_PULL,
    CONTAINER_CONFIG,
    CONTAINER,
    UNSCHEDULABLE,
    NO_NODE_FITS,
    UNBOUND_VOLUME,
    FORBIDDEN,
    QUOTA_EXCEEDED,
    QUOTA_TOO_SMALL,
    REJECTED,
    NAME_TAKEN,
    NAME_TERMINATING,
    QUEUED,
    QUEUE_IGNORED,
)
# Found by clients: no operator writes the status.
NO_OPERATOR = "NoOperator"

# The kubelet's four attempts to pull an image.
_SECONDS = 60.0
# An autoscaler adds a node within minutes; an operator is back after its upgrade.
_LONG_SECONDS = 600.0
_LIMITS = {
    **dict.fromkeys(
        (IMAGE_PULL, CONTAINER_CONFIG, CONTAINER, FORBIDDEN, QUOTA_TOO_SMALL, NAME_TAKEN, QUEUE_IGNORED), _SECONDS
    ),
    **dict.fromkeys((NO_NODE_FITS, UNBOUND_VOLUME, NO_OPERATOR), _LONG_SECONDS),
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why pods do not run.

    Attributes:
        reason: A value in `WAITING_REASONS`, or `NO_OPERATOR`; empty from an operator that writes no reason.
        message: A sentence.
    """

    reason: str
    message: str


def get_start_limit(reason: str) -> float | None:
    """Return the seconds after which a reason is permanent; None for one that ends when others release resources.

    Args:
        reason: As in `Waiting`.
    """
    return _LIMITS.get(reason)
