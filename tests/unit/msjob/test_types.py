from __future__ import annotations

import copy
import textwrap
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.api.spec import ReplicaSpec, RunPolicy, SchedulingPolicy
from kfp_mindspore.msjob.api.status import JobStatus
from kfp_mindspore.msjob.validation import validate_msjob
from kfp_mindspore.msjob.yaml_document import parse_msjob_yaml

# A busy machine is no failure.
relaxed = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
# Text that YAML would read as something else, were it not quoted.
tricky = st.sampled_from(
    ["no", "on", "~", "null", "1", "1e3", "0x10", "2026-01-31", "2026-01-31T12:00:00Z", "1:30", "="]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words | tricky
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | tricky, inner, max_size=3),
    max_leaves=8,
)
# Fields that resemble no known one, as of a Kubernetes to come.
extras = st.dictionaries(st.from_regex(r"zz[a-z]{0,8}Qx", fullmatch=True), values, max_size=3)
containers = st.builds(
    lambda command, env, extra: {
        **extra,
        "name": "mindspore",
        "command": command,
        "env": [{"name": f"V{number}", "value": value} for number, value in enumerate(env)],
    },
    st.lists(words | tricky, min_size=1, max_size=3),
    st.lists(words | tricky, max_size=3),
    extras,
)
templates = st.builds(
    lambda container, metadata, spec, extra: {
        **extra,
        "metadata": metadata,
        "spec": {**spec, "containers": [container]},
    },
    containers,
    extras,
    extras,
    extras,
)
numbers = st.none() | st.integers(0, 2**31)
counts = st.none() | st.integers(1, 2**31)
run_policies = st.builds(
    RunPolicy,
    active_deadline_seconds=counts,
    backoff_limit=numbers,
    clean_pod_policy=st.sampled_from([None, "All", "Running", "None"]),
    managed_by=st.none() | words,
    scheduling_policy=st.none()
    | st.builds(
        SchedulingPolicy,
        min_available=counts,
        min_resources=st.none()
        | st.dictionaries(words, st.integers(0, 9) | st.sampled_from(["500m", "2Gi"]), max_size=2),
        priority_class=st.none() | words,
        queue=st.none() | words,
        schedule_timeout_seconds=numbers,
    ),
    suspend=st.none() | st.booleans(),
    ttl_seconds_after_finished=numbers,
)
restart_policies = st.sampled_from([None, "Always", "OnFailure", "Never", "ExitCode"])
jobs = st.builds(
    MSJob,
    metadata=st.builds(
        lambda name, extra: {"name": name, **extra}, st.from_regex(r"[a-z][a-z0-9]{0,30}", fullmatch=True), extras
    ),
    ms_replica_specs=st.fixed_dictionaries(
        {"Worker": st.builds(ReplicaSpec, counts, restart_policies, templates)},
        optional={
            "Scheduler": st.builds(ReplicaSpec, st.sampled_from([None, 1]), restart_policies, templates),
            "PS": st.builds(ReplicaSpec, counts, restart_policies, templates),
        },
    ),
    run_policy=st.none() | run_policies,
    success_policy=st.sampled_from([None, "", "AllWorkers"]),
    enable_dynamic_worker=st.none() | st.booleans(),
)


@relaxed
@given(jobs)
def test_dict_round_trip(job: MSJob) -> None:
    document = job.to_dict()
    again = MSJob.from_dict(document)
    assert again == job
    assert again.to_dict() == document


@relaxed
@given(jobs)
def test_yaml_round_trip(job: MSJob) -> None:
    assert MSJob.from_yaml(job.to_yaml()) == job


@relaxed
@given(templates)
def test_template_stays_identical(template: dict[str, Any]) -> None:
    before = copy.deepcopy(template)
    document = {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "a"},
        "spec": {"msReplicaSpecs": {"Worker": {"template": template}}},
    }
    job = MSJob.from_dict(document)
    assert job.ms_replica_specs["Worker"].template == before
    assert job.to_dict() == document
    assert list(job.to_dict()["spec"]["msReplicaSpecs"]["Worker"]["template"]) == list(before), "in the same order"
    assert template == before


def test_every_field_is_read(document: dict[str, Any]) -> None:
    job = MSJob.from_dict(document)
    assert (job.name, job.namespace, job.workers) == ("digits", "team", 2)
    assert job.run_policy == RunPolicy(
        active_deadline_seconds=600,
        backoff_limit=0,
        clean_pod_policy="All",
        managed_by="kueue.x-k8s.io/multikueue",
        scheduling_policy=SchedulingPolicy(2, {"cpu": "2"}, "high", "training", 0),
        suspend=False,
        ttl_seconds_after_finished=0,
    )
    assert job.success_policy == "AllWorkers"
    assert job.enable_dynamic_worker is False
    assert job.ms_replica_specs["Scheduler"].replicas is None
    worker = job.ms_replica_specs["Worker"]
    assert (worker.restart_policy, worker.container["name"], worker.grace_seconds) == ("OnFailure", "mindspore", 10.0)
    assert job.to_dict() == document


def test_documents_are_copies(document: dict[str, Any]) -> None:
    job = MSJob.from_dict(document)
    document["metadata"]["name"] = "other"
    job.to_dict()["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"].clear()
    assert job.name == "digits"
    validate_msjob(job)


def test_replica_types_are_folded(document: dict[str, Any]) -> None:
    specs = document["spec"]["msReplicaSpecs"]
    document["spec"]["msReplicaSpecs"] = {"WORKER": specs["Worker"], "scheduler": specs["Scheduler"]}
    assert set(MSJob.from_dict(document).to_dict()["spec"]["msReplicaSpecs"]) == {"Worker", "Scheduler"}


def test_defaults() -> None:
    job = MSJob({"name": "a"}, {"worker": ReplicaSpec(template={"spec": {"containers": [{"name": "mindspore"}]}})})
    validate_msjob(job)
    assert (job.namespace, job.workers) == ("default", 1)
    assert job.effective_run_policy == RunPolicy(backoff_limit=3, clean_pod_policy="Running")
    assert job.run_policy is None, "defaults are not written into what the user gave"
    assert job.ms_replica_specs["Worker"].grace_seconds == 30.0


def test_given_run_policy_is_kept(document: dict[str, Any]) -> None:
    policy = MSJob.from_dict(document).effective_run_policy
    assert (policy.backoff_limit, policy.clean_pod_policy) == (0, "All")


def test_empty_grace_period_is_default(document: dict[str, Any]) -> None:
    document["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = None
    assert MSJob.from_dict(document).ms_replica_specs["Worker"].grace_seconds == 30.0


def test_status_is_read(document: dict[str, Any]) -> None:
    document["status"] = {
        "conditions": [{"type": "Running", "status": "True"}],
        "replicaStatuses": {"Worker": {"active": 2}},
        "startTime": "2026-01-31T12:00:00Z",
    }
    job = MSJob.from_dict(document)
    assert isinstance(job.status, JobStatus)
    assert job.status.has("Running")
    assert job.to_dict() == document


class TestYaml:
    text = textwrap.dedent("""\
        # A job.
        ---
        apiVersion: mindspore.gitee.com/v1
        kind: MSJob
        metadata:
          name: digits
          creationTimestamp: 2026-01-31T12:00:00Z
          annotations: {day: 2026-01-31}
        spec:
          msReplicaSpecs:
            Worker:
              template:
                spec:
                  containers:
                  - name: mindspore
                    command: [python, train.py]
        """)

    def test_job(self) -> None:
        job = MSJob.from_yaml(self.text)
        assert job.ms_replica_specs["Worker"].container["command"] == ["python", "train.py"]

    def test_dates_stay_text(self) -> None:
        metadata = MSJob.from_yaml(self.text).metadata
        assert metadata["creationTimestamp"] == "2026-01-31T12:00:00Z"
        assert metadata["annotations"] == {"day": "2026-01-31"}

    def test_fields_keep_their_usual_order(self) -> None:
        lines = MSJob.from_yaml(self.text).to_yaml().splitlines()
        assert [line for line in lines if line[0] != " "] == [
            "apiVersion: mindspore.gitee.com/v1",
            "kind: MSJob",
            "metadata:",
            "spec:",
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            pytest.param("kind: MSJob\nspec: [1, 2\n", "job.yaml: line 3, column 1: ", id="unclosed list"),
            pytest.param("kind: MSJob\n  spec: 1\n", "job.yaml: line 2, column 7: mapping values", id="indentation"),
            pytest.param("kind: MSJob\n\tspec: 1\n", "job.yaml: line 2, column 1: found character", id="tab"),
            pytest.param("a: *nowhere\n", "job.yaml: line 1, column 4: found undefined alias", id="alias"),
            pytest.param("a: !!python/name:os.system x\n", "job.yaml: line 1, column 4: could not", id="tag"),
            pytest.param("{a: 1}: b\n", "job.yaml: line 1, column 1: found unhashable key", id="key"),
            pytest.param("a: \x00\n", "job.yaml: unacceptable character", id="control character"),
            pytest.param("a: !!int b\n", "job.yaml: invalid literal", id="number"),
            pytest.param("a:\n  b: 1\n  'b': 2\n", "job.yaml: line 3, column 3: 'b' is given twice", id="key twice"),
            pytest.param(
                "a: " + "[" * 3000, "job.yaml: line 1, column 103: is nested deeper than 100 levels", id="too deep"
            ),
            pytest.param("", "job.yaml: must hold one MSJob, got 0 documents", id="empty"),
            pytest.param("# nothing\n---\n", "job.yaml: must hold one MSJob, got 0 documents", id="no document"),
            pytest.param("a: 1\n---\nb: 2\n", "job.yaml: must hold one MSJob, got 2 documents", id="two"),
            pytest.param("- a\n", "job.yaml: must hold one MSJob, got a list", id="list"),
            pytest.param("MSJob\n", "job.yaml: must hold one MSJob, got 'MSJob'", id="text"),
        ],
    )
    def test_broken(self, text: str, message: str) -> None:
        with pytest.raises(ValidationError) as caught:
            MSJob.from_yaml(text, source="job.yaml")
        assert len(caught.value.errors) == 1
        assert caught.value.errors[0].startswith(message)
        assert str(caught.value).startswith("YAML is invalid: job.yaml: ")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("x: &x {a: 1, b: 1}\ny: {<<: *x, b: 2}\n", {"x": {"a": 1, "b": 1}, "y": {"a": 1, "b": 2}}),
            ("x: &x {a: 1}\ny: &y {<<: *x, a: 2}\nz: {<<: *y, a: 3}\n", {"x": {"a": 1}, "y": {"a": 2}, "z": {"a": 3}}),
            ("x: &x {a: 1}\ny: {<<: [*x, {a: 2, c: 2}]}\n", {"x": {"a": 1}, "y": {"a": 1, "c": 2}}),
            ("x: &x {a: 1}\ny: *x\nX: 1\n", {"x": {"a": 1}, "y": {"a": 1}, "X": 1}),
            ("1: a\n'1': b\n", {1: "a", "1": "b"}),
        ],
    )
    def test_merges_and_anchors_are_no_duplicate_keys(self, text: str, expected: dict[Any, Any]) -> None:
        assert parse_msjob_yaml(text) == expected

    def test_without_source(self) -> None:
        with pytest.raises(ValidationError, match="YAML is invalid: line 1, column 4: "):
            MSJob.from_yaml("a: *b")

    def test_wrong_field_in_good_yaml(self) -> None:
        with pytest.raises(ValidationError, match=r"MSJob digits is invalid: .*containers\[0\]\.comand: .*'command'"):
            MSJob.from_yaml(self.text.replace("command", "comand"))
