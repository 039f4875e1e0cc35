"""Our dataclasses beside kubeflow-training's models: the same fields, and one accepted for the other."""

from __future__ import annotations

import dataclasses
import datetime
from types import ModuleType
from typing import Any

import pytest

from kfp_mindspore.kube.pod_schema import list_fields
from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.api import names as words
from kfp_mindspore.msjob.api.manifest import serialize, to_field_name
from kfp_mindspore.msjob.api.spec import ReplicaSpec, RunPolicy, SchedulingPolicy
from kfp_mindspore.msjob.api.status import JobCondition, JobStatus, ReplicaStatus
from kfp_mindspore.msjob.validation import validate_msjob

NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.timezone.utc)


@pytest.fixture(scope="module")
def models() -> ModuleType:
    from kubeflow.training import models

    return models


@pytest.fixture(scope="module")
def kubernetes_client() -> ModuleType:
    from kubernetes import client

    return client


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        (RunPolicy, "KubeflowOrgV1RunPolicy"),
        (SchedulingPolicy, "KubeflowOrgV1SchedulingPolicy"),
        (ReplicaSpec, "KubeflowOrgV1ReplicaSpec"),
        (JobStatus, "KubeflowOrgV1JobStatus"),
        (JobCondition, "KubeflowOrgV1JobCondition"),
        (ReplicaStatus, "KubeflowOrgV1ReplicaStatus"),
    ],
)
def test_fields_are_same(models: ModuleType, kind: type[Any], model: str) -> None:
    ours = {field.name: to_field_name(field.name) for field in dataclasses.fields(kind)}
    assert ours == getattr(models, model).attribute_map


def test_condition_types_are_same() -> None:
    from kubeflow.training.constants import constants

    # Its controller writes one that its client has no constant for.
    assert {*constants.JOB_CONDITIONS, "Suspended"} == set(words.CONDITIONS)


def test_labels_are_same() -> None:
    from kubeflow.training.constants import constants

    assert words.JOB_LABEL == constants.JOB_NAME_LABEL
    assert words.ROLE_LABEL == constants.JOB_ROLE_LABEL
    assert words.REPLICA_TYPE_LABEL == constants.REPLICA_TYPE_LABEL
    assert words.REPLICA_INDEX_LABEL == constants.REPLICA_INDEX_LABEL


def test_no_field_of_kubernetes_client_counts_as_misspelt(kubernetes_client: ModuleType) -> None:
    assert set(kubernetes_client.V1Container.attribute_map.values()) <= list_fields("Container")
    assert set(kubernetes_client.V1PodSpec.attribute_map.values()) <= list_fields("PodSpec")


def test_models_make_same_job(models: ModuleType, kubernetes_client: ModuleType, document: dict[str, Any]) -> None:
    client = kubernetes_client
    field = client.V1ObjectFieldSelector(field_path="x")
    container = client.V1Container(
        name="mindspore",
        image="example.com/train:1",
        command=["python", "train.py"],
        args=["--epochs", "2"],
        env=[
            client.V1EnvVar(name="SEED", value="42"),
            client.V1EnvVar(name="POD", value_from=client.V1EnvVarSource(field_ref=field)),
        ],
        ports=[client.V1ContainerPort(name="msjob-port", container_port=2222)],
        working_dir="src",
    )
    sidecar = client.V1Container(name="logs", image="example.com/logs:1")
    worker = models.KubeflowOrgV1ReplicaSpec(
        replicas=2,
        restart_policy="OnFailure",
        template=client.V1PodTemplateSpec(
            metadata=client.V1ObjectMeta(labels={"tier": "training"}),
            spec=client.V1PodSpec(containers=[container, sidecar], termination_grace_period_seconds=10),
        ),
    )
    scheduler = ReplicaSpec(template=client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[container])))
    job = MSJob(
        metadata=client.V1ObjectMeta(name="digits", namespace="team", labels={"app": "digits"}, annotations={"a": "b"}),
        ms_replica_specs={"Scheduler": scheduler, "Worker": worker},
        run_policy=models.KubeflowOrgV1RunPolicy(
            active_deadline_seconds=600,
            backoff_limit=0,
            clean_pod_policy="All",
            managed_by="kueue.x-k8s.io/multikueue",
            scheduling_policy=models.KubeflowOrgV1SchedulingPolicy(
                min_available=2,
                min_resources={"cpu": "2"},
                priority_class="high",
                queue="training",
                schedule_timeout_seconds=0,
            ),
            suspend=False,
            ttl_seconds_after_finished=0,
        ),
        success_policy="AllWorkers",
        enable_dynamic_worker=False,
    )
    validate_msjob(job)
    assert job == MSJob.from_dict(document)
    assert job.to_dict() == document


def test_run_policy_accepts_scheduling_policy_model(models: ModuleType) -> None:
    policy = RunPolicy(scheduling_policy=models.KubeflowOrgV1SchedulingPolicy(queue="training"))
    assert policy.scheduling_policy == SchedulingPolicy(queue="training")


def test_status_of_models(models: ModuleType, document: dict[str, Any]) -> None:
    condition = models.KubeflowOrgV1JobCondition(
        type="Running", status="True", reason="JobRunning", message="it runs", last_update_time=NOON
    )
    status = models.KubeflowOrgV1JobStatus(
        conditions=[condition],
        replica_statuses={"Worker": models.KubeflowOrgV1ReplicaStatus(active=2, failed=0)},
        start_time=NOON,
    )
    expected = JobStatus(
        conditions=[JobCondition("Running", "True", "JobRunning", "it runs", NOON)],
        replica_statuses={"Worker": ReplicaStatus(active=2, failed=0)},
        start_time=NOON,
    )
    job = MSJob.from_dict(document)
    assert MSJob(job.metadata, job.ms_replica_specs, status=status).status == expected
    assert JobStatus([condition], status.replica_statuses, NOON) == expected
    assert JobStatus.from_dict(serialize(status)) == expected


def test_build_accepts_models_of_env_and_resources(kubernetes_client: ModuleType) -> None:
    client = kubernetes_client
    job = build_msjob(
        "a",
        command=["python"],
        env=[client.V1EnvVar(name="A", value="1")],
        resources=client.V1ResourceRequirements(limits={"cpu": "2"}),
    )
    container = job.ms_replica_specs["Worker"].container
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert container["resources"] == {"limits": {"cpu": "2"}}
