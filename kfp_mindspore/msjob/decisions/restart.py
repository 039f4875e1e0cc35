"""The restart table: restart, fail or succeed after members terminate. Pure; used by all backends.

A member cannot rejoin a running MindSpore cluster, so the whole gang is restarted.

Of a member:

| exit | reason | Always, OnFailure | ExitCode | Never |
|---|---|---|---|---|
| 0 | any | done | done | done |
| any | `StartError`: the command cannot be executed | fail | fail | fail |
| any | `Evicted`, `NodeLost`, `Preempted`, `Deleted`: external causes | restart | restart | fail |
| 75, 76, 130, 137, 138, 143 | other | restart | restart | fail |
| other | other | restart | fail | fail |

Of the job, the first match:

1. successPolicy empty: worker 0 is done; `AllWorkers`: all workers are done → the job succeeds.
2. A member fails → the job fails.
3. A member restarts → the gang is restarted, or fails after backoffLimit restarts. A restart after an eviction,
   preemption or node loss is not counted.
4. Otherwise the job continues. A scheduler or parameter server that is done has no effect.

Exit code 75 (a peer is lost) is a consequence: any other failure is a decision's reason before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kfp_mindspore.msjob.api.names import WORKER
from kfp_mindspore.settings import HANG_EXIT_CODE, PEER_LOST_EXIT_CODE

RETRYABLE_EXIT_CODES = frozenset({PEER_LOST_EXIT_CODE, HANG_EXIT_CODE, 130, 137, 138, 143})
DISRUPTIONS = frozenset({"Evicted", "NodeLost", "Preempted"})
EXTERNAL_REASONS = DISRUPTIONS | {"Deleted"}
START_ERROR = "StartError"
OOM_KILLED = "OOMKilled"
_MAXIMUM_BACKOFF_SECONDS = 30.0
_MEANINGS = {PEER_LOST_EXIT_CODE: "a peer is lost", HANG_EXIT_CODE: "no progress in time: see its log"}

Verdict = Literal["done", "restart", "fail"]
Action = Literal["continue", "succeed", "restart", "fail"]


@dataclass(frozen=True)
class MemberTermination:
    """One member's state.

    Attributes:
        name: Pod name.
        replica_type: `Scheduler`, `PS` or `Worker`.
        index: Index within the type.
        exit_code: As a shell reports it (128 + signal); None while it runs.
        reason: As in a pod's terminated state: `Completed`, `Error`, `OOMKilled`, `Evicted`, `StartError` …
        message: Details.
    """

    name: str
    replica_type: str
    index: int
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Decision:
    """An action for a job, with its reason.

    Attributes:
        action: `continue`, `succeed`, `restart` or `fail`.
        reason: The condition's reason.
        message: The condition's message.
        counted: Whether a restart counts against the backoffLimit.
        termination: The failure that decided; None without one.
    """

    action: Action
    reason: str = ""
    message: str = ""
    counted: bool = True
    termination: MemberTermination | None = None


def decide_restart(restart_policy: str, exit_code: int, reason: str = "") -> Verdict:
    """Decide whether a member's termination restarts the gang.

    Args:
        restart_policy: `Always`, `OnFailure`, `Never` or `ExitCode`.
        exit_code: As a shell reports it.
        reason: As in `ContainerTermination`.
    """
    if reason == START_ERROR:
        return "fail"
    if exit_code == 0:
        return "done"
    if restart_policy == "Never":
        return "fail"
    if restart_policy == "ExitCode" and reason not in EXTERNAL_REASONS and exit_code not in RETRYABLE_EXIT_CODES:
        return "fail"
    return "restart"


def decide_job_phase(
    members: Iterable[tuple[MemberTermination, str]], *, success_policy: str, restarts: int, backoff_limit: int
) -> Decision:
    """Decide a job's next phase.

    Args:
        members: Every member with its restart policy.
        success_policy: Empty, or `AllWorkers`.
        restarts: Restarts so far.
        backoff_limit: Maximum restarts.
    """
    # The sort is stable: scheduler, parameter servers, workers by rank.
    terminations = sorted(members, key=lambda item: item[0].exit_code == PEER_LOST_EXIT_CODE)
    workers = [termination for termination, _ in terminations if termination.replica_type == WORKER]
    deciding = workers if success_policy == "AllWorkers" else [worker for worker in workers if worker.index == 0]
    if deciding and all(worker.exit_code == 0 and worker.reason != START_ERROR for worker in deciding):
        who = "all workers" if success_policy == "AllWorkers" else deciding[0].name
        return Decision("succeed", "JobSucceeded", f"{who} ended with exit code 0")
    verdicts = [
        (termination, decide_restart(policy, termination.exit_code, termination.reason))
        for termination, policy in terminations
        if termination.exit_code is not None
    ]
    for termination, verdict in verdicts:
        if verdict == "fail":
            reason = START_ERROR if termination.reason == START_ERROR else "JobFailed"
            return Decision("fail", reason, describe_termination(termination), termination=termination)
    restarting = [termination for termination, verdict in verdicts if verdict == "restart"]
    for termination in restarting:
        if termination.reason in DISRUPTIONS:
            message = f"{describe_termination(termination)}; a restart that is not counted"
            return Decision("restart", "JobDisrupted", message, counted=False, termination=termination)
    if restarting:
        first = restarting[0]
        if restarts >= backoff_limit:
            message = f"{describe_termination(first)}; restarted {restarts} of {backoff_limit} times"
            return Decision("fail", "BackoffLimitExceeded", message, termination=first)
        message = f"{describe_termination(first)}; restart {restarts + 1} of {backoff_limit}"
        return Decision("restart", "JobRestarting", message, termination=first)
    return Decision("continue")


def compute_restart_delay(restarts: int) -> float:
    """Return the delay before a restart in seconds: 0 before the first, then 1, 2, 4 … up to 30."""
    # Bounded exponent: restarts without a limit would overflow a float.
    return 0.0 if restarts <= 1 else min(_MAXIMUM_BACKOFF_SECONDS, 2.0 ** min(restarts - 2, 5))


def describe_termination(termination: MemberTermination) -> str:
    """Return a sentence about a member's termination."""
    if termination.reason == START_ERROR:
        return f"{termination.name} could not be started: {termination.message}"
    if termination.exit_code in _MEANINGS and termination.reason in ("", "Error"):
        return f"{termination.name} ended with exit code {termination.exit_code} ({_MEANINGS[termination.exit_code]})"
    text = f"{termination.name} ended with exit code {termination.exit_code}"
    if termination.reason in ("", "Error", "Completed"):
        return text
    return f"{text} ({termination.message or termination.reason})"
