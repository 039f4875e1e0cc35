"""Labels and annotations that clusters' schedulers and device plugins read from pods: every way into a job."""

import json
from typing import Any

import pytest
from kfp import dsl

from kfp_mindspore import dsl as mindspore_dsl
from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob, MSJobClient, build_msjob
from kfp_mindspore.operator.decisions.pods import build_pod, list_members
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.settings import LOCAL

# Those that MindCluster 26.0 and HAMi 2.9 document for pods.
LABELS = {
    "ring-controller.atlas": "ascend-910b",
    "fault-scheduling": "force",
    "fault-retry-times": "3",
    "vnpu-level": "low",
    "tor-affinity": "null",
    "app.kubernetes.io/part-of": "vision",
}
ANNOTATIONS = {
    "huawei.com/vnpu-mode": "hami-core",
    "sp-block": "16",
    "huawei.com/schedule_policy": "chip2-node16-sp",
    "huawei.com/recover_policy_path": "pod",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
JOB_LABELS = {"pod-rescheduling": "on"}
JOB_ANNOTATIONS = {"recover-strategy": "dump,exit"}
METADATA = {"labels": LABELS, "annotations": ANNOTATIONS}


def build_job() -> MSJob:
    return build_msjob(
        "lenet",
        command=["python", "train.py"],
        image="example.com/train:1",
        workers=2,
        labels=JOB_LABELS,
        annotations=JOB_ANNOTATIONS,
        pod_labels=LABELS,
        pod_annotations=ANNOTATIONS,
    )


def flag(name: str, entries: dict[str, str]) -> list[str]:
    return [word for key, value in entries.items() for word in (name, f"{key}={value}")]


@pytest.mark.parametrize("gang_scheduler", ["none", "volcano", "scheduler-plugins"])
def test_pods_of_operator_have_labels_and_annotations(gang_scheduler: Any) -> None:
    job = build_job()
    options = OperatorOptions(gang_scheduler=gang_scheduler)
    for member in list_members(job, "10.0.0.1", 2222):
        pod = build_pod(job, member, workers=2, host="10.0.0.1", attempt=0, restarts=0, options=options)
        assert pod["metadata"]["labels"].items() >= {**LABELS, **member.labels}.items()
        assert pod["metadata"]["annotations"].items() >= ANNOTATIONS.items()


def test_ascend_job_has_those_of_job_and_pods() -> None:
    (manifest,) = build_job().to("AscendJob")
    assert manifest["metadata"]["labels"].items() >= JOB_LABELS.items()
    assert manifest["metadata"]["annotations"] == JOB_ANNOTATIONS
    for replica in manifest["spec"]["replicaSpecs"].values():
        assert replica["template"]["metadata"] == METADATA


def test_manifest_keeps_them() -> None:
    job = MSJob.from_yaml(build_job().to_yaml())
    assert job.ms_replica_specs["Worker"].template["metadata"] == METADATA
    assert (job.metadata["labels"], job.metadata["annotations"]) == (JOB_LABELS, JOB_ANNOTATIONS)


def test_client_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[MSJob] = []
    client = MSJobClient()
    monkeypatch.setattr(client.backend, "create", lambda job, dry_run=False: created.append(job))
    client.create_job(name="a", base_image="example.com/a", pod_labels=LABELS, pod_annotations=ANNOTATIONS)
    client.train("b", script="train.py", base_image="a", pod_labels=LABELS, pod_annotations=ANNOTATIONS)
    assert [job.ms_replica_specs["Worker"].template["metadata"] for job in created] == [METADATA, METADATA]


def test_command_line_sets_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *flag("--label", JOB_LABELS),
        *flag("--annotation", JOB_ANNOTATIONS),
        *flag("--pod-label", LABELS),
        *flag("--pod-annotation", ANNOTATIONS),
    ]
    arguments = ["--backend", LOCAL, "--dry-run", "--json", "--", "true"]
    assert run(["job", "submit", "--name", "lenet", *words, *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["spec"]["msReplicaSpecs"]["Worker"]["template"]["metadata"] == METADATA
    assert document["metadata"]["labels"] == JOB_LABELS
    assert document["metadata"]["annotations"] == JOB_ANNOTATIONS


RESERVED = [
    ("labels", "training.kubeflow.org/job-name"),
    ("labels", "mindspore.gitee.com/queue"),
    ("labels", "kubernetes.io/hostname"),
    ("labels", "k8s.io/cluster-service"),
    ("annotations", "mindspore.gitee.com/restarts"),
]


@pytest.mark.parametrize(("kind", "name"), RESERVED)
def test_reserved_name_is_refused(kind: str, name: str) -> None:
    with pytest.raises(ValidationError, match=rf"^pod_{kind}\.{name}: is reserved; names that start with "):
        build_msjob("lenet", command=["python"], **{f"pod_{kind}": {name: "1"}})  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=rf"pod_{kind}\.{name}: is reserved"):
        mindspore_dsl.msjob_component(**{f"pod_{kind}": {name: "1"}})(train)  # type: ignore[call-overload]


@pytest.mark.parametrize(("kind", "name"), RESERVED)
def test_setter_refuses_reserved_name(kind: str, name: str) -> None:
    with pytest.raises(ValidationError, match=rf"^set_worker_pod is invalid: {kind}\.{name}: is reserved"):

        @dsl.pipeline
        def pipeline() -> None:
            mindspore_dsl.set_worker_pod(mindspore_dsl.msjob_component(train)(), **{kind: {name: "1"}})


def train() -> None:
    pass
