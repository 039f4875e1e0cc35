"""From pods to what the restart table judges. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from kfp_mindspore.msjob.restart import START_ERROR, ContainerTermination
from kfp_mindspore.msjob.topology import Member
from kfp_mindspore.operator.observed import KILLED, PodView

_LATEST = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)


def find_endings(
    members: Sequence[Member], pods: Mapping[str, PodView], *, launched: bool, host: str
) -> list[ContainerTermination]:
    """Return how the members stand; of those that failed, the ones that came after the first count as running.

    The end of one takes the others with it sooner or later, with exit codes that say nothing. So an operator that was
    away for a minute decides as one that was there.

    Args:
        members: A job's members.
        pods: The present attempt's pods by name.
        launched: Whether all members have run, so that a missing pod was deleted, and is not one yet to be made.
        host: The scheduler's present address; empty for none.
    """
    endings = [_find_ending(member, pods.get(member.name), launched=launched, host=host) for member in members]
    times = {
        ending.name: (pods[ending.name].finish_time if ending.name in pods else None) or _LATEST
        for ending in endings
        if ending.exit_code and ending.reason != START_ERROR
    }
    first = min(times.values(), default=_LATEST)
    return [
        dataclasses.replace(ending, exit_code=None) if times.get(ending.name, first) > first else ending
        for ending in endings
    ]


def _find_ending(member: Member, pod: PodView | None, *, launched: bool, host: str) -> ContainerTermination:
    def end(code: int | None, reason: str = "", message: str = "") -> ContainerTermination:
        return ContainerTermination(member.name, member.replica_type, member.index, code, reason, message)

    if pod is None:
        return end(KILLED, "Deleted", "its pod was deleted") if launched else end(None)
    if pod.exit_code is not None:
        return end(pod.exit_code, pod.reason, pod.message)
    if pod.deleting:
        return end(KILLED, pod.reason or "Deleted", pod.message or pod.reason or "its pod was deleted")
    if host and pod.host and pod.host != host and not launched:
        return end(KILLED, "Deleted", "its scheduler's Service was replaced")
    return end(None)
