"""Random events of a job on a simulated API server: invariants for any order of events."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kfp_mindspore.msjob.api.names import ATTEMPT_LABEL, REPLICA_TYPE_LABEL
from kfp_mindspore.operator.decisions.actions import Create, EmitEvent
from kfp_mindspore.operator.decisions.observed import RESTARTS_ANNOTATION, SPARE, Observed
from kfp_mindspore.operator.options import OperatorOptions
from tests.support.kube.simulated_cluster import Cluster, make_job, significant

LIMIT = 3
anyone = st.integers(0, 5)


class Lives(RuleBasedStateMachine):
    """One job, an operator that dies, reads stale data and loses responses, and a cluster that fails."""

    @initialize(
        workers=st.integers(1, 3),
        gang=st.sampled_from(["none", "volcano", "scheduler-plugins"]),
        restart_policy=st.sampled_from(["OnFailure", "ExitCode"]),
        clean=st.sampled_from(["Running", "All", "None"]),
        success=st.sampled_from(["", "AllWorkers"]),
        elastic=st.booleans(),
        spares=st.integers(0, 3),
    )
    def begin(
        self, workers: int, gang: Any, restart_policy: str, clean: str, success: str, elastic: bool, spares: int
    ) -> None:
        job = make_job(
            workers, restart_policy=restart_policy, backoffLimit=LIMIT, cleanPodPolicy=clean, success_policy=success
        )
        if elastic:
            job["spec"]["elasticPolicy"] = {"graceSeconds": 10}
        job["spec"]["warmSpares"] = spares
        self.cluster = Cluster(job, OperatorOptions(gang_scheduler=gang))
        self.held: tuple[Observed, str] | None = None
        self.late: list[Any] = []
        self.seen_attempt = self.seen_restarts = 0
        self.failed_attempts: set[int] = set()
        self.excused_attempts: set[int] = set()
        self.finished: dict[str, Any] | None = None
        self.checked = 0
        self.strays = False

    # The operator.

    @rule()
    def reconcile(self) -> None:
        """Reconcile with current data; a second reconciliation of the same state adds nothing."""
        observed = self.cluster.observe()
        self._check_repeat(observed)
        self._apply(observed, self.cluster.version, None)

    @rule(first=st.integers(0, 3))
    def reconcile_and_die(self, first: int) -> None:
        """It dies after its status and so many actions; the next one begins with a fresh list."""
        self._apply(self.cluster.observe(), self.cluster.version, first)
        self.held = None

    @rule()
    def look(self) -> None:
        """It observes now, and acts on it later."""
        self.held = (self.cluster.observe(), self.cluster.version)

    @precondition(lambda self: self.held is not None)
    @rule()
    def reconcile_late(self) -> None:
        assert self.held is not None
        observed, version = self.held
        self._apply(observed, version, None)

    @rule()
    def delay_creates(self) -> None:
        """Its creates get stuck on the way."""
        outcome = self.cluster.decide()
        self.late = [action for action in outcome.actions if isinstance(action, Create)]

    @precondition(lambda self: self.late)
    @rule()
    def deliver_creates(self) -> None:
        """Events are delivered, some of them late."""
        if self.cluster.job is not None:
            for action in self.late:
                self.cluster.do(action)
            self.strays = True
        self.late = []

    # The cluster.

    @rule()
    def go_well(self) -> None:
        """Nothing happens for a while but what should."""
        for _ in range(3):
            self.cluster.wait(40)
            self.cluster.settle(12)
            self.cluster.run_pods()
            self._admit()

    @rule()
    def run_pods(self) -> None:
        self.cluster.run_pods()
        self._admit()

    @rule(number=anyone)
    def run_pod(self, number: int) -> None:
        if name := self._pick(number, "Pending"):
            self.cluster.run_pod(name)

    @rule(number=anyone, end=st.sampled_from([(1, ""), (137, "OOMKilled"), (143, ""), (139, "")]))
    def fail(self, number: int, end: tuple[int, str]) -> None:
        if name := self._pick(number, "Running"):
            if not is_spare(self.cluster.pods[name]):
                self.failed_attempts.add(self._attempt_of(name))
            self.cluster.exit(name, end[0], reason=end[1])

    @rule(number=anyone)
    def end_well(self, number: int) -> None:
        if (name := self._pick(number, "Running")) and "worker-0" not in name:
            self.cluster.exit(name, 0)

    @rule(number=anyone, reason=st.sampled_from(["PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByPodGC"]))
    def disrupt(self, number: int, reason: str) -> None:
        if name := self._pick(number, "Running", "Pending"):
            self.excused_attempts.add(self._attempt_of(name))
            self.cluster.disrupt(name, reason)

    @rule(number=anyone)
    def delete(self, number: int) -> None:
        if name := self._pick(number, "Running", "Pending", "Failed"):
            self.excused_attempts.add(self._attempt_of(name))
            self.cluster.delete_pod(name)

    @rule(number=anyone, is_scheduled=st.booleans())
    def schedule(self, number: int, is_scheduled: bool) -> None:
        if name := self._pick(number, "Pending"):
            # An elastic job may scale, which is not counted.
            self.excused_attempts.add(self._attempt_of(name))
            self.cluster.set_scheduled(name, is_scheduled)

    @rule(number=anyone)
    def starve(self, number: int) -> None:
        """All pods but one get a node, for longer than the grace time."""
        if missing := self._pick(number, "Pending"):
            self.excused_attempts.add(self._attempt_of(missing))
            for name in self._list("Pending"):
                if name == missing:
                    self.cluster.set_scheduled(name, False)
                else:
                    self.cluster.run_pod(name)
            self.cluster.wait(10)
            self.cluster.settle(12)

    @rule()
    def delete_service(self) -> None:
        self.excused_attempts.add(self.seen_attempt)
        self.cluster.services.clear()

    @rule()
    def delete_endpoint_slice(self) -> None:
        self.cluster.endpoint_slices.clear()

    @rule()
    def move_scheduler(self) -> None:
        """Its pod gets another address, as when its node starts again."""
        if "digits-scheduler-0" in self._list("Running"):
            self.cluster.run_pod("digits-scheduler-0")

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        if self.cluster.job is not None:
            self.excused_attempts.update(range(self.seen_attempt, self.seen_attempt + 2))
            self.cluster.change_spec(suspend=suspend)

    @rule(workers=st.integers(1, 3))
    def scale(self, workers: int) -> None:
        if self.cluster.job is not None:
            self.excused_attempts.update(range(self.seen_attempt, self.seen_attempt + 2))
            self.cluster.change_spec(workers=workers)

    @rule(seconds=st.sampled_from([1, 10, 100]))
    def wait(self, seconds: int) -> None:
        self.cluster.wait(seconds)

    # Invariants.

    @invariant()
    def counts_never_fall(self) -> None:
        status = self.cluster.status
        assert status.get("attempt", 0) >= self.seen_attempt
        assert status.get("restarts", 0) >= self.seen_restarts
        assert status.get("restarts", 0) <= LIMIT
        self.seen_attempt, self.seen_restarts = status.get("attempt", 0), status.get("restarts", 0)

    @invariant()
    def failures_are_counted(self) -> None:
        """The attempt after a failure has one restart more."""
        counts: dict[int, int] = {}
        for pod in self.cluster.created:
            attempt = int(pod["metadata"]["labels"][ATTEMPT_LABEL])
            restarts = int(pod["metadata"]["annotations"][RESTARTS_ANNOTATION])
            assert counts.setdefault(attempt, restarts) == restarts, "one gang, one count"
        for before, after in zip(sorted(counts), sorted(counts)[1:], strict=False):
            assert counts[after] >= counts[before]
            if before in self.failed_attempts - self.excused_attempts:
                assert counts[after] > counts[before], f"the failure of attempt {before} was not counted"

    @invariant()
    def gangs_do_not_mix(self) -> None:
        """When a pod is made, none of another attempt is there; only a create that was late may break this."""
        for pod in self.cluster.created[self.checked :]:
            if self.cluster.pods.get(pod["metadata"]["name"]) is not pod:
                # A rule with several reconciliations may scale an elastic job more than once.
                continue
            attempt = pod["metadata"]["labels"][ATTEMPT_LABEL]
            others = {
                other["metadata"]["labels"][ATTEMPT_LABEL]
                for other in self.cluster.pods.values()
                if not other["metadata"].get("deletionTimestamp") and not is_spare(other)
            }
            assert self.strays or others <= {attempt}
            assert self.strays or self._led_attempts() <= {attempt}, "it would meet the scheduler of another gang"
        self.checked = len(self.cluster.created)

    @invariant()
    def an_end_is_final(self) -> None:
        if not (self.cluster.has("Succeeded") or self.cluster.has("Failed")):
            assert self.finished is None
            return
        facts = {key: self.cluster.status.get(key) for key in ("conditions", "completionTime", "restarts", "failure")}
        assert self.finished in (None, facts)
        self.finished = copy.deepcopy(facts)

    def teardown(self) -> None:
        """Left in peace, every job comes to its end, and nothing stays behind."""
        cluster = getattr(self, "cluster", None)
        if cluster is None:
            return
        if cluster.job is not None:
            # Otherwise it would scale once more.
            cluster.job["spec"].pop("elasticPolicy", None)
        cluster.change_spec(suspend=False)
        for _ in range(12):
            cluster.wait(60)
            self._settle()
            self.counts_never_fall()
            self.failures_are_counted()
            cluster.run_pods()
            self._admit()
            if cluster.has("Running"):
                break
            if cluster.has("Failed") or cluster.has("Succeeded"):
                break
        else:
            raise AssertionError(f"does not come to run: {cluster.status} {list(cluster.pods)}")
        self._settle()
        if cluster.has("Running"):
            schedulers = [pod for pod in cluster.pods.values() if get_type(pod) == "scheduler"]
            scheduler = next(iter(schedulers), None)
            is_there = scheduler is not None and scheduler["status"]["phase"] not in ("Succeeded", "Failed")
            assert cluster.endpoint_addresses == ([scheduler["status"]["podIP"]] if is_there else [])
        for name, pod in cluster.pods.items():
            if pod["status"]["phase"] == "Running":
                cluster.exit(name, 0)
        self._settle()
        cluster.run_pods()
        self._settle()
        assert cluster.has("Succeeded") or cluster.has("Failed"), cluster.status
        assert cluster.pod_group is None
        assert cluster.endpoint_slices == {}
        if cluster.job["spec"]["runPolicy"]["cleanPodPolicy"] == "All":
            assert cluster.pods == {}
            assert cluster.services == {}

    # Helpers.

    def _apply(self, observed: Observed, version: str, first: int | None) -> None:
        outcome = self.cluster.decide(observed)
        finished = bool(self.finished)
        if self.cluster.apply(outcome, version, first=first):
            # Its own write is its latest state of the job.
            self.held = None
            if finished:
                forbidden = (Create, EmitEvent)
                assert not any(isinstance(action, forbidden) for action in outcome.actions)

    def _check_repeat(self, observed: Observed) -> None:
        outcome = self.cluster.decide(observed)
        assert outcome == self.cluster.decide(observed)
        again = self.cluster.decide(
            dataclasses.replace(observed, job={**(observed.job or {}), "status": outcome.status})
        )
        assert again.status == outcome.status
        assert not [action for action in again.actions if isinstance(action, EmitEvent)]

    def _settle(self) -> None:
        self.cluster.settle(12)
        outcome = self.cluster.decide()
        assert not significant(outcome)
        assert outcome.status == self.cluster.status

    def _admit(self) -> None:
        if self.cluster.pod_group is not None:
            self.cluster.pod_group["status"] = {"phase": "Inqueue"}

    def _pick(self, number: int, *phases: str) -> str | None:
        names = self._list(*phases)
        return names[number % len(names)] if names else None

    def _list(self, *phases: str) -> list[str]:
        return [
            name
            for name, pod in self.cluster.pods.items()
            if pod["status"]["phase"] in phases and not pod["metadata"].get("deletionTimestamp")
        ]

    def _led_attempts(self) -> set[str]:
        """Return the attempts of the pods behind the job's Service; `gone` for a deleted pod."""
        attempts = {
            pod["metadata"]["uid"]: pod["metadata"]["labels"][ATTEMPT_LABEL] for pod in self.cluster.pods.values()
        }
        return {
            attempts.get(endpoint["targetRef"]["uid"], "gone")
            for item in self.cluster.endpoint_slices.values()
            for endpoint in item["endpoints"]
        }

    def _attempt_of(self, name: str) -> int:
        return int(self.cluster.pods[name]["metadata"]["labels"][ATTEMPT_LABEL])


def get_type(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["labels"][REPLICA_TYPE_LABEL])


def is_spare(pod: dict[str, Any]) -> bool:
    return get_type(pod) == SPARE


Lives.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_lives = Lives.TestCase


@settings(max_examples=150, deadline=None)
@given(
    workers=st.integers(1, 3),
    deaths=st.lists(
        st.tuples(
            st.sampled_from(["fail", "disrupt", "suspend", "delete"]),
            st.integers(0, 3),
            st.lists(st.integers(0, 4), max_size=3),
            st.booleans(),
        ),
        max_size=6,
    ),
)
def test_restart_counts_survive_operator_crash(workers: int, deaths: list[tuple[str, int, list[int], bool]]) -> None:
    cluster = Cluster(make_job(workers, backoffLimit=100)).start()
    counted = 0
    for attempts, (kind, number, dies_after, late) in enumerate(deaths, start=1):
        name = sorted(cluster.pods)[number % len(cluster.pods)]
        before, version = cluster.observe(), cluster.version
        if kind == "fail":
            cluster.exit(name, 1)
        elif kind == "disrupt":
            cluster.disrupt(name)
        elif kind == "delete":
            cluster.delete_pod(name)
        else:
            cluster.change_spec(suspend=True)
        counted += kind in ("fail", "delete")
        for first in dies_after:
            cluster.apply(cluster.decide(), cluster.version, first=first)
        if late:
            cluster.apply(cluster.decide(before), version)
        cluster.settle()
        cluster.change_spec(suspend=False)
        for _ in range(3):
            cluster.wait(40)
            cluster.settle()
            cluster.run_pods()
        cluster.settle()
        assert cluster.has("Running")
        assert (cluster.status["restarts"], cluster.status["attempt"]) == (counted, attempts)
        assert {pod["metadata"]["labels"][ATTEMPT_LABEL] for pod in cluster.pods.values()} == {str(attempts)}
        assert {pod["metadata"]["annotations"][RESTARTS_ANNOTATION] for pod in cluster.pods.values()} == {str(counted)}
