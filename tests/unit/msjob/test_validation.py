from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.decisions.topology import Endpoints, build_topology
from kfp_mindspore.msjob.validation import list_errors, validate_msjob
from tests.support.kube.msjob_cases import CONTAINER, DELETED, POD, POLICY, SPECS, WORKER, put


def test_valid_job(document: dict[str, Any]) -> None:
    validate_msjob(document)
    validate_msjob(MSJob.from_dict(document))


CASES: list[tuple[str, Any, str]] = [
    # The document.
    ("apiVersion", DELETED, "apiVersion: is required"),
    ("apiVersion", "v1", "apiVersion: must be 'mindspore.gitee.com/v1', got 'v1'"),
    ("kind", "TFJob", "kind: must be 'MSJob', got 'TFJob'"),
    ("kind", None, "kind: is required"),
    ("metadata", DELETED, "metadata: is required"),
    ("metadata", "digits", "metadata: must be a mapping, got 'digits'"),
    ("spec", DELETED, "spec: is required"),
    ("spec", [], "spec: must be a mapping, got a list"),
    ("specs", {}, "specs: unknown field; did you mean 'spec'?"),
    ("status", 1, "status: must be a mapping, got 1"),
    # Its metadata.
    ("metadata.name", DELETED, "metadata.name: is required"),
    ("metadata.name", "a" * 52, f"metadata.name: must have at most 51 characters, got 52 ('{'a' * 52}')"),
    ("metadata.namespace", "Team", "metadata.namespace: must be a DNS label of at most 63 characters, got 'Team'"),
    ("metadata.namespace", "a" * 64, f"metadata.namespace: must be a DNS label of at most 63 characters, got '{'a' * 64}'"),  # noqa: E501
    ("metadata.labels", [], "metadata.labels: must be a mapping, got a list"),
    ("metadata.labels.app", 1, "metadata.labels.app: must be text (put it in quotes), got 1"),
    ("metadata.annotations.a", True, "metadata.annotations.a: must be text (put it in quotes), got True"),
    # Its specification.
    (SPECS, DELETED, f"{SPECS}: is required"),
    (SPECS, {}, f"{WORKER}: is required; a job without a worker would never end"),
    (WORKER, DELETED, f"{WORKER}: is required; a job without a worker would never end"),
    (WORKER, 2, f"{WORKER}: must be a mapping, got 2"),
    (f"{SPECS}.Workers", {}, f"{SPECS}.Workers: unknown replica type, must be one of Scheduler, PS, Worker"),
    (f"{SPECS}.worker", {}, f"{SPECS}.worker: the same as Worker; give each replica type once"),
    ("spec.msreplicaSpecs", {}, "spec.msreplicaSpecs: unknown field; did you mean 'msReplicaSpecs'?"),
    ("spec.successPolicy", "All", "spec.successPolicy: must be one of '', 'AllWorkers', got 'All'"),
    ("spec.enableDynamicWorker", "no", "spec.enableDynamicWorker: must be true or false, got 'no'"),
    ("spec.runpolicy", {}, "spec.runpolicy: unknown field; did you mean 'runPolicy'?"),
    ("spec.entirelyDifferent", {}, "spec.entirelyDifferent: unknown field"),
    ("spec.elasticPolicy", 3, "spec.elasticPolicy: must be a mapping, got 3"),
    ("spec.elasticPolicy", {"minReplicas": 0}, "spec.elasticPolicy.minReplicas: must be ≥ 1, got 0"),
    ("spec.elasticPolicy", {"minReplicas": 3, "maxReplicas": 2}, "spec.elasticPolicy.minReplicas: must be ≤ maxReplicas (2), got 3"),  # noqa: E501
    ("spec.topologyKey", "a zone", "spec.topologyKey: must be the key of a node's label, such as 'topology.kubernetes.io/zone', got 'a zone'"),  # noqa: E501
    # Its replicas.
    (f"{WORKER}.replicas", 0, f"{WORKER}.replicas: must be ≥ 1, got 0"),
    (f"{WORKER}.replicas", -1, f"{WORKER}.replicas: must be ≥ 1, got -1"),
    (f"{WORKER}.replicas", "2", f"{WORKER}.replicas: must be a whole number ≥ 1, got '2'"),
    (f"{WORKER}.replicas", 1.5, f"{WORKER}.replicas: must be a whole number ≥ 1, got 1.5"),
    (f"{WORKER}.replicas", True, f"{WORKER}.replicas: must be a whole number ≥ 1, got True"),
    (f"{SPECS}.Scheduler.replicas", 2, f"{SPECS}.Scheduler.replicas: must be 1, got 2"),
    (f"{WORKER}.restartPolicy", "always", f"{WORKER}.restartPolicy: must be one of 'Always', 'OnFailure', 'Never', 'ExitCode', got 'always'"),  # noqa: E501
    (f"{WORKER}.replica", 2, f"{WORKER}.replica: unknown field; did you mean 'replicas'?"),
    (f"{WORKER}.template", DELETED, f"{WORKER}.template: is required"),
    (f"{WORKER}.template", "x", f"{WORKER}.template: must be a mapping, got 'x'"),
    # Its run policy.
    (POLICY, 3, f"{POLICY}: must be a mapping, got 3"),
    (f"{POLICY}.backoffLimit", -1, f"{POLICY}.backoffLimit: must be ≥ 0, got -1"),
    (f"{POLICY}.activeDeadlineSeconds", 0, f"{POLICY}.activeDeadlineSeconds: must be ≥ 1, got 0"),
    (f"{POLICY}.activeDeadlineSeconds", "10m", f"{POLICY}.activeDeadlineSeconds: must be a whole number ≥ 1, got '10m'"),  # noqa: E501
    (f"{POLICY}.ttlSecondsAfterFinished", -5, f"{POLICY}.ttlSecondsAfterFinished: must be ≥ 0, got -5"),
    (f"{POLICY}.cleanPodPolicy", "none", f"{POLICY}.cleanPodPolicy: must be one of 'All', 'Running', 'None', got 'none'"),  # noqa: E501
    (f"{POLICY}.suspend", 1, f"{POLICY}.suspend: must be true or false, got 1"),
    (f"{POLICY}.managedBy", 1, f"{POLICY}.managedBy: must be text (put it in quotes), got 1"),
    (f"{POLICY}.backofLimit", 1, f"{POLICY}.backofLimit: unknown field; did you mean 'backoffLimit'?"),
    (f"{POLICY}.schedulingPolicy", "x", f"{POLICY}.schedulingPolicy: must be a mapping, got 'x'"),
    (f"{POLICY}.schedulingPolicy.minAvailable", 0, f"{POLICY}.schedulingPolicy.minAvailable: must be ≥ 1, got 0"),
    (f"{POLICY}.schedulingPolicy.que", "x", f"{POLICY}.schedulingPolicy.que: unknown field; did you mean 'queue'?"),
    # Its pod templates.
    (f"{WORKER}.template.Spec", {}, f"{WORKER}.template.Spec: unknown field; did you mean 'spec'?"),
    (POD, DELETED, f"{POD}: is required"),
    (POD, [], f"{POD}: must be a mapping, got a list"),
    (f"{POD}.nodeselector", {}, f"{POD}.nodeselector: unknown field; did you mean 'nodeSelector'?"),
    (f"{POD}.terminationGracePeriodSeconds", -1, f"{POD}.terminationGracePeriodSeconds: must be a whole number ≥ 0, got -1"),  # noqa: E501
    (f"{POD}.terminationGracePeriodSeconds", "10s", f"{POD}.terminationGracePeriodSeconds: must be a whole number ≥ 0, got '10s'"),  # noqa: E501
    (f"{POD}.containers", DELETED, f"{POD}.containers: must be a list of at least one container"),
    (f"{POD}.containers", [], f"{POD}.containers: must be a list of at least one container"),
    (f"{POD}.containers", {}, f"{POD}.containers: must be a list of at least one container"),
    (CONTAINER, "mindspore", f"{CONTAINER}: must be a mapping, got 'mindspore'"),
    (f"{CONTAINER}.name", "main", f"{POD}.containers: must have one named 'mindspore', got main, logs"),
    (f"{CONTAINER}.name", DELETED, f"{CONTAINER}.name: is required"),
    (f"{CONTAINER}.image", 1.0, f"{CONTAINER}.image: must be text (put it in quotes), got 1.0"),
    (f"{CONTAINER}.comand", [], f"{CONTAINER}.comand: unknown field; did you mean 'command'?"),
    (f"{CONTAINER}.workingdir", "x", f"{CONTAINER}.workingdir: unknown field; did you mean 'workingDir'?"),
    (f"{CONTAINER}.command", "python train.py", f"{CONTAINER}.command: must be a list of text, got 'python train.py'"),
    (f"{CONTAINER}.args[1]", 2, f"{CONTAINER}.args[1]: must be text (put it in quotes), got 2"),
    (f"{CONTAINER}.env", {"A": "1"}, f"{CONTAINER}.env: must be a list, got a mapping"),
    (f"{CONTAINER}.env[0]", "A=1", f"{CONTAINER}.env[0]: must be a mapping, got 'A=1'"),
    (f"{CONTAINER}.env[0].name", "", f"{CONTAINER}.env[0].name: must be text without '=', got ''"),
    (f"{CONTAINER}.env[0].name", "A=B", f"{CONTAINER}.env[0].name: must be text without '=', got 'A=B'"),
    (f"{CONTAINER}.env[0].value", 42, f"{CONTAINER}.env[0].value: must be text (put it in quotes), got 42"),
    (f"{CONTAINER}.env[0].valuefrom", {}, f"{CONTAINER}.env[0].valuefrom: unknown field; did you mean 'valueFrom'?"),
    (f"{CONTAINER}.env[1].value", "x", f"{CONTAINER}.env[1]: must have value or valueFrom, got both"),
    (f"{CONTAINER}.env[1].valueFrom", "x", f"{CONTAINER}.env[1].valueFrom: must be a mapping, got 'x'"),
    (f"{CONTAINER}.env[1].valueFrom.fieldRef", "x", f"{CONTAINER}.env[1].valueFrom.fieldRef: must be a mapping, got 'x'"),  # noqa: E501
    (f"{CONTAINER}.envFrom", {}, f"{CONTAINER}.envFrom: must be a list, got a mapping"),
    (f"{CONTAINER}.envFrom", ["x"], f"{CONTAINER}.envFrom[0]: must be a mapping, got 'x'"),
    (f"{CONTAINER}.volumeMounts", "/data", f"{CONTAINER}.volumeMounts: must be a list, got '/data'"),
    (f"{CONTAINER}.volumeMounts", ["/data"], f"{CONTAINER}.volumeMounts[0]: must be a mapping, got '/data'"),
    (f"{CONTAINER}.ports", 2222, f"{CONTAINER}.ports: must be a list, got 2222"),
    (f"{CONTAINER}.ports[0]", 2222, f"{CONTAINER}.ports[0]: must be a mapping, got 2222"),
    (f"{CONTAINER}.ports[0].containerPort", "2222", f"{CONTAINER}.ports[0].containerPort: must be a whole number, got '2222'"),  # noqa: E501
    (f"{CONTAINER}.ports[0].containerPort", 1023, f"{CONTAINER}.ports[0].containerPort: must be from 1024 to 65535, got 1023"),  # noqa: E501
    (f"{CONTAINER}.ports[0].containerPort", 65536, f"{CONTAINER}.ports[0].containerPort: must be from 1024 to 65535, got 65536"),  # noqa: E501
    (f"{CONTAINER}.ports[1]", {"name": "web", "containerPort": 0}, f"{CONTAINER}.ports[1].containerPort: must be from 1 to 65535, got 0"),  # noqa: E501
    (f"{CONTAINER}.ports[0].containerport", 1, f"{CONTAINER}.ports[0].containerport: unknown field; did you mean 'containerPort'?"),  # noqa: E501
    # At any depth, by Kubernetes' own description.
    (f"{WORKER}.template.metadata.labels.tier", 1, f"{WORKER}.template.metadata.labels.tier: must be text (put it in quotes), got 1"),  # noqa: E501
    (f"{WORKER}.template.metadata.label", {}, f"{WORKER}.template.metadata.label: unknown field; did you mean 'labels'?"),  # noqa: E501
    (f"{POD}.hostNetwork", "yes", f"{POD}.hostNetwork: must be true or false, got 'yes'"),
    (f"{POD}.securityContext", {"runAsNonroot": True}, f"{POD}.securityContext.runAsNonroot: unknown field; did you mean 'runAsNonRoot'?"),  # noqa: E501
    (f"{POD}.tolerations", {"key": "npu"}, f"{POD}.tolerations: must be a list, got a mapping"),
    (f"{POD}.volumes", [{"emptyDir": {}}], f"{POD}.volumes[0].name: is required"),
    (f"{POD}.volumes", [{"name": "a", "persistentVolumeClaim": {"claimname": "b"}}], f"{POD}.volumes[0].persistentVolumeClaim.claimname: unknown field; did you mean 'claimName'?; {POD}.volumes[0].persistentVolumeClaim.claimName: is required"),  # noqa: E501
    (f"{CONTAINER}.resources", {"limit": {}}, f"{CONTAINER}.resources.limit: unknown field; did you mean 'limits'?"),
    (f"{CONTAINER}.resources", {"limits": {"cpu": 0.5}}, f"{CONTAINER}.resources.limits.cpu: must be a whole number or text (put it in quotes), got 0.5"),  # noqa: E501
    (f"{CONTAINER}.livenessProbe", {"periodSeconds": "5"}, f"{CONTAINER}.livenessProbe.periodSeconds: must be a whole number, got '5'"),  # noqa: E501
    (f"{CONTAINER}.volumeMounts", [{"name": "a", "mountpath": "/a", "mountPath": "/a"}], f"{CONTAINER}.volumeMounts[0].name: must be one of the pod's volumes (none), got 'a'; {CONTAINER}.volumeMounts[0].mountpath: unknown field; did you mean 'mountPath'?"),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "error"), CASES, ids=[case[2][:70] for case in CASES])
def test_one_wrong_field_is_one_sentence(document: dict[str, Any], path: str, value: Any, error: str) -> None:
    with pytest.raises(ValidationError) as caught:
        MSJob.from_dict(put(document, path, value))
    assert "; ".join(caught.value.errors) == error


@pytest.mark.parametrize(
    "name", ["", "Digits", "1digits", "-digits", "digits-", "di_gits", "di.gits", "digits\n", "zähler", 1, True, []]
)
def test_bad_names(document: dict[str, Any], name: Any) -> None:
    (error,) = list_errors(put(document, "metadata.name", name))
    assert error.startswith("metadata.name: must be lower-case letters, digits and '-'")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.name", "a" * 51),
        ("metadata.name", "a-1"),
        ("metadata.namespace", "1-team"),
        ("metadata.namespace", None),
        ("metadata.uid", "of the cluster"),
        ("metadata.labels", None),
        ("spec.successPolicy", ""),
        ("spec.elasticPolicy", {"minReplicas": 1, "maxReplicas": 4}),
        ("spec.topologyKey", "topology.kubernetes.io/zone"),
        ("spec.topologyKey", "rack"),
        ("spec.runPolicy", None),
        (f"{SPECS}.PS", {"replicas": 2, "template": {"spec": {"containers": [{"name": "mindspore"}]}}}),
        (f"{WORKER}.replicas", None),
        (f"{POLICY}.backoffLimit", 0),
        (f"{POLICY}.ttlSecondsAfterFinished", 0),
        (f"{POD}.terminationGracePeriodSeconds", 0),
        (f"{POD}.fieldOfTheFuture", {"x": 1}),
        (f"{POD}.securityContext", {"somethingQuiteNew": 1}),
        (f"{POD}.securityContext", None),
        (f"{CONTAINER}.resources", {"limits": {"cpu": 2, "memory": "4Gi"}}),
        (f"{WORKER}.template.metadata.creationTimestamp", None),
        (f"{CONTAINER}.somethingQuiteNew", 1),
        (f"{CONTAINER}.env[2]", {"name": "EMPTY"}),
        (f"{CONTAINER}.ports[1]", {"name": "web", "containerPort": 80}),
        (f"{CONTAINER}.command", None),
        ("status", {"conditions": [{"type": "Running", "status": "True"}], "ofTheFuture": 1}),
    ],
)
def test_valid_fields(document: dict[str, Any], path: str, value: Any) -> None:
    validate_msjob(put(document, path, value))


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{}]},
        {"conditions": ["Running"]},
        {"conditions": 1},
        {"startTime": "yesterday"},
        {"startTime": 5},
        {"replicaStatuses": []},
        {"replicaStatuses": {"Worker": 2}},
    ],
)
def test_status_that_cannot_be_read(document: dict[str, Any], status: Any) -> None:
    (error,) = list_errors(put(document, "status", status))
    assert error.startswith("status: must be the status of a job (")


def test_condition_without_quotes(document: dict[str, Any]) -> None:
    status = {"conditions": [{"type": "Created", "status": "True"}, {"type": None, "status": True}]}
    assert list_errors(put(document, "status", status)) == [
        "status.conditions[1].type: must be text, got nothing",
        "status.conditions[1].status: must be text, got True",
    ]


def test_all_wrong_fields_are_named_at_once(document: dict[str, Any]) -> None:
    wrong = put(put(document, f"{WORKER}.replicas", 0), f"{POLICY}.suspend", "x")
    wrong = put(wrong, f"{CONTAINER}.comand", [])
    with pytest.raises(ValidationError) as caught:
        validate_msjob(wrong)
    paths = {error.split(":")[0] for error in caught.value.errors}
    assert paths == {f"{WORKER}.replicas", f"{POLICY}.suspend", f"{CONTAINER}.comand"}
    assert str(caught.value).startswith("MSJob digits is invalid: spec.")
    assert isinstance(caught.value, UserError)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", [None, [], "MSJob", 1])
def test_documents_that_are_no_mappings(value: Any) -> None:
    with pytest.raises(ValidationError, match=r"^MSJob is invalid: document: must be a mapping, got "):
        validate_msjob(value)


junk = st.none() | st.booleans() | st.integers(-2, 2) | st.just(2.5) | st.sampled_from(["", "x", "True"])
junk = st.recursive(
    junk, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("name"), inner), max_leaves=3
)


def list_paths(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        inner = [found for key, item in value.items() for found in list_paths(item, f"{path}.{key}" if path else key)]
    elif isinstance(value, list):
        inner = [found for index, item in enumerate(value) for found in list_paths(item, f"{path}[{index}]")]
    else:
        inner = []
    return [path, *inner] if path else inner


@settings(deadline=None)
@given(data=st.data())
def test_any_value_of_field_is_refused_or_usable(data: st.DataObject) -> None:
    container = {
        "name": "mindspore",
        "command": ["a"],
        "args": ["b"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "ports": [{"name": "msjob-port", "containerPort": 2222}],
    }
    base = {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": {"name": "a", "labels": {"b": "c"}},
        "spec": {
            "msReplicaSpecs": {
                "Worker": {"replicas": 2, "template": {"metadata": {}, "spec": {"containers": [container]}}}
            },
            "runPolicy": {"backoffLimit": 1, "schedulingPolicy": {"minAvailable": 1}},
        },
        "status": {"conditions": [{"type": "Running", "status": "True"}], "replicaStatuses": {"Worker": {"active": 1}}},
    }
    path = data.draw(st.sampled_from(list_paths(base)))
    changed = put(base, path, data.draw(junk))
    if errors := list_errors(changed):
        assert all(re.match(r"[\w.\[\]]+: ", error) for error in errors)
        return
    job = MSJob.from_dict(changed)
    assert MSJob.from_dict(job.to_dict()) == job
    assert job.workers >= 1
    assert job.effective_run_policy.backoff_limit is not None
    assert build_topology(job, Endpoints("127.0.0.1", 1024)).members
    assert job.ms_replica_specs["Worker"].grace_seconds >= 0
