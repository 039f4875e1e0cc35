"""The restart table, all of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.msjob.api.names import RESTART_POLICIES
from kfp_mindspore.msjob.decisions.restart import (
    Decision,
    MemberTermination,
    compute_restart_delay,
    decide_job_phase,
    decide_restart,
    describe_termination,
)

POLICIES = ("Always", "OnFailure", "ExitCode", "Never")
OWN = ("", "Error", "OOMKilled")
DISRUPTED = ("Evicted", "NodeLost", "Preempted")
FOREIGN = (*DISRUPTED, "Deleted")
RETRYABLE = (75, 76, 130, 137, 138, 143)
# Permanent in kubeflow/common, as every other code below 128, and unknown codes.
PERMANENT = (1, 2, 3, 126, 127, 128, 134, 139, 255)

# (exit codes, reasons) → verdicts in the order of POLICIES
MEMBER_TABLE = [
    ((0,), ("", "Completed", *FOREIGN), ("done", "done", "done", "done")),
    ((0, *RETRYABLE, *PERMANENT), ("StartError",), ("fail", "fail", "fail", "fail")),
    ((*RETRYABLE, *PERMANENT), FOREIGN, ("restart", "restart", "restart", "fail")),
    (RETRYABLE, OWN, ("restart", "restart", "restart", "fail")),
    (PERMANENT, OWN, ("restart", "restart", "fail", "fail")),
]
MEMBER_CASES = [
    (policy, code, reason, verdict)
    for codes, reasons, verdicts in MEMBER_TABLE
    for code, reason in itertools.product(codes, reasons)
    for policy, verdict in zip(POLICIES, verdicts, strict=True)
]


def test_table_is_complete() -> None:
    assert set(POLICIES) == set(RESTART_POLICIES)
    given_cases = [(policy, code, reason) for policy, code, reason, _ in MEMBER_CASES]
    codes, reasons = (0, *RETRYABLE, *PERMANENT), (*OWN, *FOREIGN, "StartError")
    # A process that was killed for its memory, or had an error, has not ended with 0.
    possible = set(itertools.product(POLICIES, codes, reasons)) - set(
        itertools.product(POLICIES, (0,), ("Error", "OOMKilled"))
    )
    assert possible <= set(given_cases)
    assert len(given_cases) == len(set(given_cases)), "each case once"


@pytest.mark.parametrize(("codes", "reasons", "verdicts"), MEMBER_TABLE)
def test_one_member(codes: tuple[int, ...], reasons: tuple[str, ...], verdicts: tuple[str, ...]) -> None:
    for code, reason in itertools.product(codes, reasons):
        found = tuple(decide_restart(policy, code, reason) for policy in POLICIES)
        assert found == verdicts, f"exit code {code}, reason {reason!r}"


def member(text: str) -> MemberTermination:
    """Read `worker-1:137/Evicted`; without a code it runs."""
    name, _, rest = text.partition(":")
    code, _, reason = rest.partition("/")
    kind, index = name.split("-")
    kinds = {"scheduler": "Scheduler", "ps": "PS", "worker": "Worker"}
    return MemberTermination(
        f"job-{name}", kinds[kind], int(index), int(code) if code else None, reason, "no such file"
    )


JOB_TABLE = [
    # members, policy, success policy, restarts, limit → action, reason
    ("worker-0", "OnFailure", "", 0, 3, "continue", ""),
    ("worker-0:0", "OnFailure", "", 0, 3, "succeed", "JobSucceeded"),
    ("worker-0:0", "Always", "", 0, 3, "succeed", "JobSucceeded"),
    ("worker-0:0", "Never", "", 0, 0, "succeed", "JobSucceeded"),
    ("worker-0:1", "OnFailure", "", 0, 3, "restart", "JobRestarting"),
    ("worker-0:1", "OnFailure", "", 2, 3, "restart", "JobRestarting"),
    ("worker-0:1", "OnFailure", "", 3, 3, "fail", "BackoffLimitExceeded"),
    ("worker-0:1", "OnFailure", "", 0, 0, "fail", "BackoffLimitExceeded"),
    ("worker-0:1", "Never", "", 0, 3, "fail", "JobFailed"),
    ("worker-0:1", "ExitCode", "", 0, 3, "fail", "JobFailed"),
    ("worker-0:137", "ExitCode", "", 0, 3, "restart", "JobRestarting"),
    ("worker-0:137/Deleted", "Never", "", 0, 3, "fail", "JobFailed"),
    ("worker-0:137/Deleted", "OnFailure", "", 3, 3, "fail", "BackoffLimitExceeded"),
    ("worker-0:137/OOMKilled", "OnFailure", "", 3, 3, "fail", "BackoffLimitExceeded"),
    # A script may exit with 143 by itself.
    ("worker-0:143", "ExitCode", "", 3, 3, "fail", "BackoffLimitExceeded"),
    # A disruption is not counted, so that no limit ends it.
    ("worker-0:137/Evicted", "OnFailure", "", 3, 3, "restart", "JobDisrupted"),
    ("worker-0:1/NodeLost", "ExitCode", "", 0, 0, "restart", "JobDisrupted"),
    ("worker-0:1/Preempted worker-1:1", "OnFailure", "", 3, 3, "restart", "JobDisrupted"),
    ("worker-0:1/Preempted", "Never", "", 0, 3, "fail", "JobFailed"),
    ("worker-0:127/StartError", "Always", "", 0, 3, "fail", "StartError"),
    ("worker-0:0/StartError", "Always", "", 0, 3, "fail", "StartError"),
    # Worker 0 decides, and all do with AllWorkers.
    ("worker-0:0 worker-1", "OnFailure", "", 0, 3, "succeed", "JobSucceeded"),
    ("worker-0:0 worker-1", "OnFailure", "AllWorkers", 0, 3, "continue", ""),
    ("worker-0 worker-1:0", "OnFailure", "", 0, 3, "continue", ""),
    ("worker-0:0 worker-1:0", "OnFailure", "AllWorkers", 0, 3, "succeed", "JobSucceeded"),
    ("worker-0:0 worker-1:1", "OnFailure", "AllWorkers", 0, 3, "restart", "JobRestarting"),
    ("worker-0:0 worker-1:1", "Never", "AllWorkers", 0, 3, "fail", "JobFailed"),
    ("worker-0:0 worker-1:1", "Never", "", 0, 3, "succeed", "JobSucceeded"),
    ("worker-0 worker-1:1", "OnFailure", "", 0, 3, "restart", "JobRestarting"),
    # A permanent failure has precedence over a retryable one.
    ("worker-0:137 worker-1:1", "ExitCode", "", 0, 3, "fail", "JobFailed"),
    ("worker-0:1 worker-1:127/StartError", "OnFailure", "", 0, 3, "fail", "StartError"),
    # A worker that lost a peer is not the reason.
    ("worker-0:75 worker-1:1", "ExitCode", "", 0, 3, "fail", "JobFailed"),
    ("worker-0:75 worker-1", "ExitCode", "", 0, 3, "restart", "JobRestarting"),
    ("worker-0:75 worker-1:137/Evicted", "OnFailure", "", 3, 3, "restart", "JobDisrupted"),
    # The others decide by failing only.
    ("scheduler-0:0 worker-0 worker-1", "OnFailure", "", 0, 3, "continue", ""),
    ("scheduler-0:0 ps-0:0 worker-0 worker-1:0", "OnFailure", "", 0, 3, "continue", ""),
    ("scheduler-0:1 worker-0 worker-1", "OnFailure", "", 0, 3, "restart", "JobRestarting"),
    ("scheduler-0 ps-0:1 worker-0", "Never", "", 0, 3, "fail", "JobFailed"),
    ("scheduler-0:1 worker-0:0 worker-1:0", "Never", "AllWorkers", 0, 3, "succeed", "JobSucceeded"),
    ("scheduler-0", "OnFailure", "AllWorkers", 0, 3, "continue", ""),
]


@pytest.mark.parametrize(("members", "policy", "success", "restarts", "limit", "action", "reason"), JOB_TABLE)
def test_job(members: str, policy: str, success: str, restarts: int, limit: int, action: str, reason: str) -> None:
    decision = decide_job_phase(
        [(member(text), policy) for text in members.split()],
        success_policy=success,
        restarts=restarts,
        backoff_limit=limit,
    )
    assert (decision.action, decision.reason) == (action, reason)
    assert bool(decision.message) is (action != "continue")


def test_each_member_has_its_own_restart_policy() -> None:
    members = [(member("scheduler-0:1"), "Never"), (member("worker-0:1"), "OnFailure")]
    assert decide_job_phase(members, success_policy="", restarts=0, backoff_limit=3) == Decision(
        "fail", "JobFailed", "job-scheduler-0 ended with exit code 1", termination=members[0][0]
    )


@pytest.mark.parametrize(
    ("restarts", "limit", "message"),
    [
        (0, 3, "job-worker-1 ended with exit code 9; restart 1 of 3"),
        (2, 3, "job-worker-1 ended with exit code 9; restart 3 of 3"),
        (3, 3, "job-worker-1 ended with exit code 9; restarted 3 of 3 times"),
    ],
)
def test_restarts_are_counted_in_message(restarts: int, limit: int, message: str) -> None:
    members = [(member("worker-0"), "Always"), (member("worker-1:9"), "Always")]
    assert decide_job_phase(members, success_policy="", restarts=restarts, backoff_limit=limit).message == message


@pytest.mark.parametrize(("policy", "action"), [("Never", "fail"), ("OnFailure", "restart")])
def test_lost_peer_is_no_first_failure(policy: str, action: str) -> None:
    members = [(member(text), policy) for text in ("scheduler-0", "worker-0:75", "worker-1:137", "worker-2:75")]
    decision = decide_job_phase(members, success_policy="", restarts=0, backoff_limit=3)
    assert (decision.action, decision.termination) == (action, members[2][0])


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        (MemberTermination("a", "Worker", 0, 1), "a ended with exit code 1"),
        (MemberTermination("a", "Worker", 0, 1, "Error", "x"), "a ended with exit code 1"),
        (MemberTermination("a", "Worker", 0, 75, "Error"), "a ended with exit code 75 (a peer is lost)"),
        (MemberTermination("a", "Worker", 0, 137, "OOMKilled"), "a ended with exit code 137 (OOMKilled)"),
        (MemberTermination("a", "Worker", 0, 137, "Evicted", "disk full"), "a ended with exit code 137 (disk full)"),
        (MemberTermination("a", "Worker", 0, 127, "StartError", "no 'x'"), "a could not be started: no 'x'"),
    ],
)
def test_descriptions(ending: MemberTermination, sentence: str) -> None:
    assert describe_termination(ending) == sentence


def test_pauses_grow_to_half_minute() -> None:
    assert [compute_restart_delay(count) for count in (0, 1, 2, 3, 4, 5, 6, 7, 8, 5000)] == [
        0,
        0,
        1,
        2,
        4,
        8,
        16,
        30,
        30,
        30,
    ]


endings = st.builds(
    MemberTermination,
    name=st.just("m"),
    replica_type=st.sampled_from(["Scheduler", "PS", "Worker"]),
    index=st.integers(0, 2),
    exit_code=st.none() | st.sampled_from([0, *RETRYABLE, *PERMANENT]),
    reason=st.sampled_from([*OWN, *FOREIGN, "StartError"]),
)


@settings(deadline=None)
@given(
    members=st.lists(st.tuples(endings, st.sampled_from(POLICIES)), min_size=1, max_size=5),
    success=st.sampled_from(["", "AllWorkers"]),
    restarts=st.integers(0, 4),
    limit=st.integers(0, 4),
)
def test_of_any_gang(members: list[tuple[MemberTermination, str]], success: str, restarts: int, limit: int) -> None:
    decision = decide_job_phase(members, success_policy=success, restarts=restarts, backoff_limit=limit)
    again = decide_job_phase(reversed(members), success_policy=success, restarts=restarts, backoff_limit=limit)
    assert decision.action == again.action, "in whatever order its members are listed"
    assert decision.counted is (decision.reason != "JobDisrupted")
    if decision.action == "restart" and decision.counted:
        assert restarts < limit
    if all(ending.exit_code is None for ending, _ in members):
        assert decision == Decision("continue")
    if decision.action == "continue":
        verdicts = {decide_restart(policy, item.exit_code, item.reason) for item, policy in members if item.exit_code}
        assert not verdicts, "nobody failed"
