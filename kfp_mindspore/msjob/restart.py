"""The restart table: what becomes of a job when some of its processes have ended. Pure; all backends decide by it.

A member cannot rejoin a MindSpore cluster that runs, so that a restart is always one of the whole gang.

Of a member:

| exit | reason | Always, OnFailure | ExitCode | Never |
|---|---|---|---|---|
| 0 | any | done | done | done |
| any | `StartError`: the command cannot be run | fail | fail | fail |
| any | `Evicted`, `NodeLost`, `Preempted`, `Deleted`: not its own doing | restart | restart | fail |
| 130, 137, 138, 143 | other | restart | restart | fail |
| other | other | restart | fail | fail |

Of the job, the first that holds:

1. successPolicy empty: worker 0 is done; `AllWorkers`: all workers are done → it has succeeded.
2. A member fails → the job fails.
3. A member is to be restarted → the gang is restarted, unless it was restarted backoffLimit times: then it fails.
   Where one of them was `Evicted`, `Preempted` or on a node that was lost, the restart is not counted.
4. Otherwise it goes on. A scheduler or parameter server that is done decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kfp_mindspore.msjob.names import WORKER

RETRYABLE_EXIT_CODES = frozenset({130, 137, 138, 143})
DISRUPTIONS = frozenset({"Evicted", "NodeLost", "Preempted"})
EXTERNAL_REASONS = DISRUPTIONS | {"Deleted"}
START_ERROR = "StartError"
_MAXIMUM_BACKOFF_SECONDS = 30.0

Verdict = Literal["done", "restart", "fail"]
Action = Literal["continue", "succeed", "restart", "fail"]


@dataclass(frozen=True)
class ContainerTermination:
    """How one member stands.

    Attributes:
        name: Its pod's name.
        replica_type: `Scheduler`, `PS` or `Worker`.
        index: Its index within its type.
        exit_code: As a shell reports it (128 + signal); None while it runs.
        reason: One word, as in a pod's terminated state: `Completed`, `Error`, `OOMKilled`, `Evicted`, `StartError` …
        message: More about it.
    """

    name: str
    replica_type: str
    index: int
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Decision:
    """What to do with a job, and why.

    Attributes:
        action: `continue`, `succeed`, `restart` or `fail`.
        reason: One word for the condition.
        message: A sentence for the condition.
        counted: Whether a restart counts against the backoffLimit.
    """

    action: Action
    reason: str = ""
    message: str = ""
    counted: bool = True


def decide_restart(restart_policy: str, exit_code: int, reason: str = "") -> Verdict:
    """Decide about one member that has ended.

    Args:
        restart_policy: `Always`, `OnFailure`, `Never` or `ExitCode`.
        exit_code: As a shell reports it.
        reason: See `ContainerTermination`.
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
    members: Iterable[tuple[ContainerTermination, str]], *, success_policy: str, restarts: int, backoff_limit: int
) -> Decision:
    """Decide about a job.

    Args:
        members: Every member with its restart policy.
        success_policy: Empty, or `AllWorkers`.
        restarts: How often the gang was restarted so far.
        backoff_limit: How often it may be.
    """
    endings = list(members)
    workers = [ending for ending, _ in endings if ending.replica_type == WORKER]
    deciding = workers if success_policy == "AllWorkers" else [worker for worker in workers if worker.index == 0]
    if deciding and all(worker.exit_code == 0 and worker.reason != START_ERROR for worker in deciding):
        who = "all workers" if success_policy == "AllWorkers" else deciding[0].name
        return Decision("succeed", "JobSucceeded", f"{who} ended with exit code 0")
    verdicts = [
        (ending, decide_restart(policy, ending.exit_code, ending.reason))
        for ending, policy in endings
        if ending.exit_code is not None
    ]
    for ending, verdict in verdicts:
        if verdict == "fail":
            return Decision("fail", "StartError" if ending.reason == START_ERROR else "JobFailed", describe(ending))
    restarting = [ending for ending, verdict in verdicts if verdict == "restart"]
    for ending in restarting:
        if ending.reason in DISRUPTIONS:
            return Decision("restart", "JobDisrupted", f"{describe(ending)}; a restart that is not counted", False)
    if restarting:
        sentence = describe(restarting[0])
        if restarts >= backoff_limit:
            return Decision(
                "fail", "BackoffLimitExceeded", f"{sentence}; restarted {restarts} of {backoff_limit} times"
            )
        return Decision("restart", "JobRestarting", f"{sentence}; restart {restarts + 1} of {backoff_limit}")
    return Decision("continue")


def compute_restart_delay(restarts: int) -> float:
    """Return the pause before a restart in seconds: none before the first, then 1, 2, 4 … up to 30."""
    # Beyond 2 ** 5 the power only grows, without end.
    return 0.0 if restarts <= 1 else min(_MAXIMUM_BACKOFF_SECONDS, 2.0 ** min(restarts - 2, 5))


def describe(ending: ContainerTermination) -> str:
    """Return a sentence about how a member ended."""
    if ending.reason == START_ERROR:
        return f"{ending.name} could not be started: {ending.message}"
    text = f"{ending.name} ended with exit code {ending.exit_code}"
    return f"{text} ({ending.message or ending.reason})" if ending.reason not in ("", "Error", "Completed") else text
