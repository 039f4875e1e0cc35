"""Member terminations, as input to the restart table. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from kfp_mindspore.kube.pods import KILLED
from kfp_mindspore.msjob.decisions.restart import START_ERROR, MemberTermination
from kfp_mindspore.msjob.decisions.topology import Member
from kfp_mindspore.operator.decisions.observed import PodView
from kfp_mindspore.operator.decisions.pod_view import NODE_LOST
from kfp_mindspore.settings import PEER_LOST_EXIT_CODE

_LATEST = datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)


def list_terminations(
    members: Sequence[Member], pods: Mapping[str, PodView], *, launched: bool, host: str
) -> list[MemberTermination]:
    """Return the members' terminations; among several failures only the first counts, the others as running.

    A lost peer (exit code 75) is never the first while there is another failure. One failure causes the others, whose
    exit codes mean nothing. So an operator that was down meanwhile decides like
    one that was not.

    Args:
        members: A job's members.
        pods: The present attempt's pods by name.
        launched: Whether all members have run: a missing pod was then deleted, and is not still to be created.
        host: The scheduler's present address; empty for none.
    """
    endings = [_get_termination(member, pods.get(member.name), launched=launched, host=host) for member in members]
    if any(ending.exit_code == PEER_LOST_EXIT_CODE for ending in endings):
        # A member's peers on a lost node have ended before its toleration did.
        endings = [
            dataclasses.replace(ending, exit_code=KILLED, reason=NODE_LOST, message="its node no longer reports")
            if ending.exit_code is None and (pod := pods.get(ending.name)) and pod.lost
            else ending
            for ending in endings
        ]
    failures = {
        ending.name: (
            ending.exit_code == PEER_LOST_EXIT_CODE and ending.reason == "Error",
            (pods[ending.name].finish_time if ending.name in pods else None) or _LATEST,
        )
        for ending in endings
        if ending.exit_code and ending.reason != START_ERROR
    }
    first = min(failures.values(), default=(True, _LATEST))
    return [
        dataclasses.replace(ending, exit_code=None) if failures.get(ending.name, first) > first else ending
        for ending in endings
    ]


def _get_termination(member: Member, pod: PodView | None, *, launched: bool, host: str) -> MemberTermination:
    def end(code: int | None, reason: str = "", message: str = "") -> MemberTermination:
        return MemberTermination(member.name, member.replica_type, member.index, code, reason, message)

    if pod is None:
        return end(KILLED, "Deleted", "its pod was deleted") if launched else end(None)
    if pod.exit_code is not None:
        return end(pod.exit_code, pod.reason, pod.message)
    if pod.deleting:
        return end(KILLED, pod.reason or "Deleted", pod.message or pod.reason or "its pod was deleted")
    if host and pod.host and pod.host != host and not launched:
        return end(KILLED, "Deleted", "its scheduler's Service was replaced")
    return end(None)
