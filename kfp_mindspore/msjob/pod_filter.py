"""Selecting a job's pods."""

from __future__ import annotations

from collections.abc import Callable

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob.backends.base import Pod
from kfp_mindspore.msjob.names import REPLICA_TYPES, WORKER, resolve_replica_type


def build_pod_filter(
    is_master: bool = False, replica_type: str | None = None, replica_index: int | None = None
) -> Callable[[Pod], bool]:
    """Return the predicate for `get_job_pods` arguments.

    Raises:
        ValidationError: The replica type is unknown.
    """
    kind = resolve_replica_type(replica_type) if replica_type is not None else None
    if replica_type is not None and kind is None:
        raise ValidationError([f"replica_type: must be one of {', '.join(REPLICA_TYPES)}, got {replica_type!r}"])

    def is_selected(pod: Pod) -> bool:
        return (
            (not is_master or (pod.replica_type == WORKER and pod.index == 0))
            and kind in (None, pod.replica_type)
            and replica_index in (None, pod.index)
        )

    return is_selected
