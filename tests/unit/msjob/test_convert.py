from __future__ import annotations

import copy
from typing import Any

import pytest

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob
from kfp_mindspore.msjob.convert import Conversion, convert_file, convert_msjob
from kfp_mindspore.msjob.decisions.topology import Endpoints, build_topology
from kfp_mindspore.msjob.yaml_document import parse_msjob_yaml, parse_yaml_documents
from tests.support.kube.msjob_cases import DELETED, VALID, put

# The fields of the manifest published in 2020: backend and a masterPort of text beside the list of replica specs.
PUBLISHED = """\
apiVersion: kubeflow.org/v1
kind: MSJob
metadata:
  name: msjob-mnist
spec:
  backend: tcp
  masterPort: "23456"
  replicaSpecs:
    - replicas: 1
      replicaType: MASTER
      template:
        spec:
          containers:
            - name: msjob-mnist
              image: example.com/mindspore-cpu:0.1
              imagePullPolicy: IfNotPresent
              command: [/bin/bash, -c, python /data/lenet.py]
              volumeMounts:
                - {name: data, mountPath: /data}
          restartPolicy: OnFailure
          volumes:
            - name: data
              hostPath: {path: /mnt/mnist}
"""
# The same, with the second line of the list's item out of line, as it came out in print.
MISPRINTED = PUBLISHED.replace("      replicaType", "        replicaType", 1)


def replica(kind: str | None = "MASTER", replicas: Any = 1, **container: Any) -> dict[str, Any]:
    item: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "train", "image": "a", **container}]}}}
    if kind is not None:
        item["replicaType"] = kind
    return item if replicas is None else {**item, "replicas": replicas}


def first_job(*replicas: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MSJob",
        "metadata": {"name": "old"},
        "spec": {**spec, "replicaSpecs": list(replicas)},
    }


def list_changes(conversion: Conversion) -> dict[str, str]:
    return {change.field: change.change for change in conversion.changes}


def find_refusals(document: dict[str, Any]) -> list[str]:
    before = copy.deepcopy(document)
    with pytest.raises(ValidationError) as caught:
        convert_msjob(document)
    assert document == before
    return list(caught.value.errors)


def test_published_sample_as_printed_is_no_yaml() -> None:
    with pytest.raises(ValidationError) as caught:
        parse_msjob_yaml(MISPRINTED, source="mnist.yaml")
    assert "mnist.yaml: line 10, column 20: mapping values are not allowed here" in str(caught.value)


def test_published_sample_with_its_indentation_mended_is_converted() -> None:
    (document,) = parse_yaml_documents(PUBLISHED)
    before = copy.deepcopy(document)
    conversion = convert_msjob(document)
    assert document == before
    worker = conversion.job.to_dict()["spec"]["msReplicaSpecs"]["Worker"]
    assert worker["replicas"] == 1
    assert worker["restartPolicy"] == "OnFailure"
    (container,) = worker["template"]["spec"]["containers"]
    assert container["name"] == "mindspore"
    assert "ports" not in container
    assert worker["template"]["spec"]["volumes"] == before["spec"]["replicaSpecs"][0]["template"]["spec"]["volumes"]
    assert list_changes(conversion) == {
        "apiVersion": "now mindspore.gitee.com/v1",
        "spec.backend": "'tcp' left out",
        "spec.replicaSpecs[0].template.spec.containers[0].name": "'msjob-mnist' is now 'mindspore'",
        "spec.replicaSpecs[0].template.spec.restartPolicy": "'OnFailure' is now that of msReplicaSpecs.Worker",
        "spec.replicaSpecs[0].replicaType": "MASTER is now msReplicaSpecs.Worker",
        "spec.masterPort": "left out",
        "spec.replicaSpecs[0].template.spec.containers[0].env": "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT added",
    }
    assert all(change.reason for change in conversion.changes)


def test_master_and_workers_become_one_type_and_keep_port() -> None:
    conversion = convert_msjob(first_job(replica(), replica("WORKER", 3), masterPort="23456", backend="hccl"))
    job = conversion.job
    assert job.workers == 4
    assert job.ms_replica_specs["Worker"].container["ports"] == [{"name": "msjob-port", "containerPort": 23456}]
    members = build_topology(job, Endpoints("127.0.0.1", 23456)).members
    assert [member.name for member in members] == ["old-scheduler-0", *(f"old-worker-{rank}" for rank in range(4))]
    changes = list_changes(conversion)
    assert changes["spec.replicaSpecs"] == "MASTER and 3 WORKER are now 4 of Worker"
    assert conversion.job == MSJob.from_yaml(job.to_yaml())


def test_one_template_by_alias_is_converted_once_for_each() -> None:
    text = """\
apiVersion: kubeflow.org/v1
kind: MSJob
metadata: {name: old}
spec:
  replicaSpecs:
    - replicaType: MASTER
      template: &template
        spec:
          restartPolicy: Never
          containers: [{name: train, image: a}]
    - {replicaType: WORKER, replicas: 2, template: *template}
"""
    (document,) = parse_yaml_documents(text)
    job = convert_msjob(document).job
    assert job.workers == 3
    assert job.ms_replica_specs["Worker"].restart_policy == "Never"


@pytest.mark.parametrize(
    ("replicas", "workers"),
    [
        ([replica("WORKER", 2)], 2),
        ([replica("MASTER", None)], 1),
        ([replica(None, None)], 1),
        ([replica("worker", "2")], 2),
        ([replica("WORKER", 2), replica("Master")], 3),
    ],
)
def test_how_many_workers_there_are(replicas: list[dict[str, Any]], workers: int) -> None:
    assert convert_msjob(first_job(*replicas)).job.workers == workers


def test_containers_may_have_different_names_in_master_and_worker() -> None:
    worker = put(replica("WORKER", 1), "template.spec.containers[0].name", "slave")
    assert convert_msjob(first_job(replica(), worker)).job.workers == 2


def test_container_among_several_is_found_by_its_name() -> None:
    master = replica()
    master["template"]["spec"]["containers"].append({"name": "mindspore", "image": "b"})
    conversion = convert_msjob(first_job(master))
    assert [item["name"] for item in conversion.job.ms_replica_specs["Worker"].template["spec"]["containers"]] == [
        "train", "mindspore",
    ]  # fmt: skip


def test_references_to_containers_resources_are_renamed() -> None:
    reference = {"resourceFieldRef": {"containerName": "train", "resource": "limits.cpu"}}
    master = replica(env=[{"name": "CORES", "valueFrom": reference}])
    master["template"]["spec"]["volumes"] = [{"name": "info", "downwardAPI": {"items": [{"path": "cpu", **reference}]}}]
    template = convert_msjob(first_job(master)).job.ms_replica_specs["Worker"].template
    source = template["spec"]["containers"][0]["env"][-1]["valueFrom"]
    assert source["resourceFieldRef"]["containerName"] == "mindspore"
    assert template["spec"]["volumes"][0]["downwardAPI"]["items"][0]["resourceFieldRef"]["containerName"] == "mindspore"


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([{"name": "web", "containerPort": 80}], [{"name": "web", "containerPort": 80}, "new"]),
        ([{"name": "master", "containerPort": 23456}], ["new"]),
        ([{"name": "msjob-port", "containerPort": 23456}], ["new"]),
    ],
)
def test_masters_port_among_others(ports: list[Any], expected: list[Any]) -> None:
    new = {"name": "msjob-port", "containerPort": 23456}
    job = convert_msjob(first_job(replica("WORKER", 2, ports=ports), masterPort=23456)).job
    assert job.ms_replica_specs["Worker"].container["ports"] == [new if port == "new" else port for port in expected]


def test_fields_of_both_generations_are_kept() -> None:
    policy = {"backoffLimit": 1, "cleanPodPolicy": "None"}
    document = first_job(replica(), runPolicy=policy, successPolicy="AllWorkers")
    document["status"] = {"phase": "Done"}
    conversion = convert_msjob(document)
    spec = conversion.job.to_dict()["spec"]
    assert (spec["runPolicy"], spec["successPolicy"]) == (policy, "AllWorkers")
    assert list_changes(conversion)["status"] == "left out"


@pytest.mark.parametrize("document", VALID.values(), ids=VALID)
def test_job_of_todays_form_is_left_as_it_is(document: dict[str, Any]) -> None:
    conversion = convert_msjob(document)
    assert conversion.changes == ()
    assert conversion.job == MSJob.from_dict(document)


KNOWN = (
    "apiVersion, kind: must be one of MPIJob of kubeflow.org/v2beta1, TrainJob of trainer.kubeflow.org/v1alpha1, "
    "AscendJob of mindxdl.gitee.com/v1, Job of batch.volcano.sh/v1alpha1, MSJob of mindspore.gitee.com/v1, "
    "MSJob of kubeflow.org/v1"
)
MASTER, WORKER = replica(), replica("WORKER", 2)
SPECS = "spec.replicaSpecs"
BOTH = "must be the same in MASTER (spec.replicaSpecs[0]) and WORKER (spec.replicaSpecs[1]), which become one Worker"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (put(first_job(MASTER), "apiVersion", "v1"), f"{KNOWN}, got 'MSJob' of 'v1'"),
    (put(first_job(MASTER), "kind", "PyTorchJob"), f"{KNOWN}, got 'PyTorchJob' of 'kubeflow.org/v1'"),
    (first_job(MASTER, terminationPolicy={"master": {"replicaName": "WORKER", "replicaRank": 1}}), "spec.terminationPolicy: must be the MASTER of rank 0, got {'master': {'replicaName': 'WORKER', 'replicaRank': 1}}"),  # noqa: E501
    (put(first_job(MASTER), "spec", DELETED), "spec: is required"),
    (put(first_job(MASTER), "spec", []), "spec: must be a mapping"),
    (first_job(), f"{SPECS}: must be a list of MASTER and WORKER, got []"),
    (put(first_job(MASTER), SPECS, DELETED), f"{SPECS}: must be a list of MASTER and WORKER, got nothing"),
    (first_job(MASTER, masterport=1), "spec.masterport: unknown field; did you mean 'masterPort'?"),
    (first_job({**MASTER, "replica": 1}), f"{SPECS}[0].replica: unknown field; did you mean 'replicas'?"),
    (first_job(MASTER, MASTER), f"{SPECS}[1].replicaType: MASTER is given twice, see {SPECS}[0]"),
    (first_job(replica("PS")), f"{SPECS}[0].replicaType: must be MASTER or WORKER, got 'PS'"),
    (first_job(MASTER, replica(None)), f"{SPECS}[1].replicaType: must be MASTER or WORKER, got nothing"),
    (first_job(replica("MASTER", 2)), f"{SPECS}[0].replicas: must be 1 for a MASTER, got 2"),
    (first_job(replica("WORKER", "two")), f"{SPECS}[0].replicas: must be a whole number ≥ 1, got 'two'"),
    (first_job(replica("WORKER", 0)), f"{SPECS}[0].replicas: must be a whole number ≥ 1, got 0"),
    (put(first_job(MASTER), f"{SPECS}[0].template", None), f"{SPECS}[0].template: must have a spec, got nothing"),
    (put(first_job(MASTER), f"{SPECS}[0]", "x"), f"{SPECS}[0]: must be a mapping, got 'x'"),
    (put(first_job(MASTER), f"{SPECS}[0].template.spec.containers", None), f"{SPECS}[0].template.spec.containers: must be a list of containers, got nothing"),  # noqa: E501
    (put(first_job(MASTER), f"{SPECS}[0].template.spec.containers", [{"name": "a"}, {"name": "b"}]), f"{SPECS}[0].template.spec.containers: must have one named 'mindspore' where there are several, got a, b"),  # noqa: E501
    (first_job(MASTER, WORKER, masterPort="23456x"), "spec.masterPort: must be a whole number from 1024 to 65535, got '23456x'"),  # noqa: E501
    (first_job(MASTER, WORKER, masterPort=80), "spec.masterPort: must be a whole number from 1024 to 65535, got 80"),
    (first_job({**MASTER, "masterPort": 2000}, WORKER, masterPort=3000), f"spec.masterPort: must be the same wherever it is given, got {SPECS}[0].masterPort 2000, spec.masterPort 3000"),  # noqa: E501
    (first_job(replica("WORKER", 2, ports=[{"name": "msjob-port", "containerPort": 3000}]), masterPort=2000), "spec.masterPort: must be that of the container port 'msjob-port' (3000), got 2000"),  # noqa: E501
    (first_job(replica(image="b"), WORKER), f"template.spec.containers[0].image: {BOTH}: got 'b' and 'a'"),
    (first_job(replica(args=["--master"]), WORKER), f"template.spec.containers[0].args: {BOTH}: got ['--master'] and nothing"),  # noqa: E501
    (first_job(put(MASTER, "template.metadata.labels.role", "m"), WORKER), f"template.metadata: {BOTH}: got {{'labels': {{'role': 'm'}}}} and nothing"),  # noqa: E501
    (first_job(put(MASTER, "template.spec.restartPolicy", "Never"), WORKER), f"template.spec.restartPolicy: {BOTH}: got 'Never' and nothing"),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("document", "error"), REFUSED, ids=[error[:60] for _, error in REFUSED])
def test_unconvertible_fields_are_named(document: dict[str, Any], error: str) -> None:
    assert find_refusals(document) == [error]


def test_errors_of_both_generations_are_named_as_converted() -> None:
    with pytest.raises(ValidationError) as caught:
        convert_msjob(put(first_job(MASTER), "metadata.name", "a" * 52))
    assert "once converted, is invalid: metadata.name: must have at most 51 characters" in str(caught.value)


# The shape of the only distributed sample of the first generation: a key that is given twice, a mount without its
# volume in MASTER, and a host path in the mount of WORKER.
DISTRIBUTED = """\
apiVersion: kubeflow.org/v1
kind: MSJob
metadata: {name: old}
spec:
  masterPort: "23456"
  schedulerName: batch
  msImage: example.com/mindspore:0.1
  RuntimeId: ab12
  terminationPolicy: {master: {replicaName: MASTER, replicaRank: 0}}
  replicaSpecs:
    - replicaType: MASTER
      template:
        spec:
          restartPolicy: OnFailure
          containers:
            - name: mindspore
              command: [python, /code/train.py, --rank, $(RANK)]
              volumeMounts: [{name: out, mountPath: /out}, {name: code, mountPath: /code}]
          volumes: [{name: out, emptyDir: {}}]
          restartPolicy: OnFailure
    - replicaType: WORKER
      replicas: 3
      template:
        spec:
          restartPolicy: OnFailure
          containers:
            - name: mindspore
              command: [python, /code/train.py, --rank, $(RANK)]
              volumeMounts: [{name: out, mountPath: /out}, {name: code, hostPath: {path: /home/code}}]
          volumes: [{name: out, emptyDir: {}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
"""


def test_distributed_sample_of_first_generation() -> None:
    conversion = convert_file(DISTRIBUTED, source="old.yaml")
    config, document = conversion.documents
    assert config["kind"] == "ConfigMap"
    worker = document["spec"]["msReplicaSpecs"]["Worker"]
    assert (worker["replicas"], worker["restartPolicy"]) == (4, "OnFailure")
    pod = worker["template"]["spec"]
    assert pod["schedulerName"] == "batch"
    assert pod["volumes"] == [{"name": "code", "hostPath": {"path": "/home/code"}}, {"name": "out", "emptyDir": {}}]
    (container,) = pod["containers"]
    assert container["image"] == "example.com/mindspore:0.1"
    assert {item["mountPath"] for item in container["volumeMounts"]} == {"/out", "/code"}
    assert {item["name"]: item["value"] for item in container["env"]} == {
        "RANK": "$(MS_NODE_ID)",
        "WORLD_SIZE": "$(MS_WORKER_NUM)",
        "MASTER_ADDR": "$(MS_SCHED_HOST)",
        "MASTER_PORT": "$(MS_SCHED_PORT)",
    }
    changes = {change.field: change.change for change in conversion.changes}
    assert changes["line 20, column 11: restartPolicy"] == "given twice, the last is used"
    assert changes["template.spec.volumes"] == "code added to all workers"
    assert changes["spec.RuntimeId"] == changes["spec.terminationPolicy"] == "left out"
    assert changes["spec.schedulerName"] == "'batch' is now schedulerName of the template"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: ConfigMap\napiVersion: v1\n", "old.yaml: must hold a job"),
        ("- a\n", "old.yaml: must hold one MSJob, got a list"),
        ("apiVersion: kubeflow.org/v1\nkind: PyTorchJob\n", "got 'PyTorchJob' of 'kubeflow.org/v1'"),
    ],
)
def test_files_without_convertible_job_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        convert_file(text, source="old.yaml")
    assert message in str(caught.value)


@pytest.mark.parametrize("path", ["", ".containers", ".containers[0]", ".containers[0].volumeMounts", ".volumes"])
@pytest.mark.parametrize("value", [0, "x", [0]])
def test_malformed_templates_are_refused(path: str, value: Any) -> None:
    job = first_job(*(put(replica, f"template.spec{path}", value) for replica in (MASTER, WORKER)))
    with pytest.raises(ValidationError):
        convert_msjob(job)


def test_submitting_first_generation_hints_at_convert() -> None:
    with pytest.raises(ValidationError) as caught:
        MSJob.from_yaml(PUBLISHED)
    assert "kfp-mindspore job convert FILE" in caught.value.hint
