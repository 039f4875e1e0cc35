from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kfp_mindspore.errors import ValidationError
from kfp_mindspore.msjob import MSJob, build_msjob
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.convert import convert_file
from kfp_mindspore.msjob.kinds import KINDS, export_job
from kfp_mindspore.msjob.kinds.common import Notes
from kfp_mindspore.msjob.kinds.trainjob import export_with_runtime
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED, build_training_runtime
from tests.support.controllers.definitions import read_definition
from tests.support.kube.msjob_cases import VALID, VALID_HERE, build_job, build_template, put

# Of the jobs with newer fields; those in templates are pruned by definitions for an older Kubernetes.
POLICIES = ("suspended", "managed-by", "schedule-timeout", "elastic", "topology-key")
JOB = (Path(__file__).parents[3] / "golden" / "kinds" / "job.yaml").read_text()
COMMAND = ["python", "train.py"]
ENTRYPOINT = ["python", "-m", "kfp_mindspore.podside.launchers", "--"]


def get_variables(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in container.get("env", [])}


def list_unknown(schema: dict[str, Any], value: Any, path: str = "") -> Iterator[str]:
    """Yield the fields that the API server would prune."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        inner = schema.get("additionalProperties")
        for name, item in value.items():
            field = schema.get("properties", {}).get(name, inner)
            if isinstance(field, dict):
                yield from list_unknown(field, item, f"{path}.{name}")
            elif schema.get("properties"):
                yield f"{path}.{name}"
    elif isinstance(value, list):
        for item in value:
            yield from list_unknown(schema.get("items", {}), item, f"{path}[]")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["golden", *VALID, *POLICIES])
def test_manifests_are_valid_by_published_definitions(name: str, kind: str) -> None:
    job = MSJob.from_yaml(JOB) if name == "golden" else MSJob.from_dict({**VALID, **VALID_HERE}[name])
    cannot = "PS" in job.ms_replica_specs or any(
        "command" not in item.container for item in job.ms_replica_specs.values()
    )
    try:
        manifests = job.to(kind)
    except ValidationError:
        # test_refusals has the messages.
        if not cannot:
            raise
        manifests = []
    for manifest in manifests:
        group = manifest["apiVersion"].partition("/")[0]
        if kind == "first-generation":
            continue
        definition = read_definition(manifest["kind"])
        version = next(item for item in definition["versions"] if manifest["apiVersion"] == f"{group}/{item['name']}")
        schema = version["schema"]["openAPIV3Schema"]
        body = {key: value for key, value in manifest.items() if key != "metadata"}
        jsonschema.validate(body, schema)
        assert list(list_unknown(schema, body)) == []


@pytest.mark.parametrize("kind", ["MPIJob", "TrainJob", "AscendJob", "volcano", "legacy", "first-generation"])
def test_jobs_survive_round_trip(kind: str) -> None:
    job = MSJob.from_yaml(JOB)
    text = yaml.safe_dump_all(job.to(kind))
    back = convert_file(text, to=None).jobs[0]
    worker, expected = back.ms_replica_specs["Worker"], job.ms_replica_specs["Worker"]
    assert (back.name, back.namespace, worker.replicas) == (job.name, job.namespace, expected.replicas)
    assert worker.restart_policy in ("ExitCode", "OnFailure")
    container = {**worker.container, "command": worker.container["command"] + worker.container.pop("args", [])}
    expected_container = {**expected.container, "command": [*COMMAND, "--epochs", "5"]}
    expected_container.pop("args")
    if kind == "first-generation":
        container["command"] = container["command"][len(ENTRYPOINT) :]
    assert get_variables(expected_container).items() <= get_variables(container).items()
    assert [container[name] for name in ("name", "image", "command", "resources", "volumeMounts")] == [
        expected_container[name] for name in ("name", "image", "command", "resources", "volumeMounts")
    ]
    assert worker.template["spec"]["volumes"] == expected.template["spec"]["volumes"]
    if kind != "first-generation":
        assert back.effective_run_policy.backoff_limit == 2
        assert not {"MS_ROLE", "MS_SCHED_HOST", "MS_WORKER_NUM"} & get_variables(container).keys()


def test_mpijob_starts_rank_per_device_and_passes_variables_on() -> None:
    job = MSJob.from_yaml(JOB.replace("gpu: 1", "gpu: 2"))
    (manifest,) = job.to("MPIJob")
    replicas = manifest["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    assert (manifest["spec"]["slotsPerWorker"], replicas["Worker"]["replicas"]) == (2, 3)
    words = " ".join(launcher["command"])
    assert words.startswith("mpirun --allow-run-as-root --bind-to none -np 6 -x PATH -x MS_SCHED_HOST")
    assert words.endswith("-x KFP_MINDSPORE_OUTPUT_DIR " + " ".join([*ENTRYPOINT, *COMMAND, "--epochs", "5"]))
    assert get_variables(launcher)["MS_SCHED_HOST"] == "lenet-worker-0.lenet"
    assert "resources" not in launcher
    (worker,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert "command" not in worker


SHARED = build_training_runtime(DISTRIBUTED, JobOptions(backoff_limit=3))


def export_shared(job: MSJob) -> tuple[dict[str, Any], Notes]:
    notes = Notes()
    return export_with_runtime(job, SHARED, notes), notes


def test_trainjob_with_runtime_of_cluster_has_what_the_runtime_lacks() -> None:
    manifest, notes = export_shared(MSJob.from_yaml(JOB))
    spec = manifest["spec"]
    assert spec["runtimeRef"] == {"name": "mindspore-distributed", "kind": "ClusterTrainingRuntime"}
    assert (spec["trainer"]["numNodes"], spec["trainer"]["command"]) == (3, [*ENTRYPOINT, *COMMAND])
    # Trainer refuses variables of this container in patches.
    assert get_variables(spec["trainer"])["KFP_MINDSPORE_OUTPUT_DIR"]
    (patch,) = spec["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod, own = node["template"]["spec"]["template"]["spec"], MSJob.from_yaml(JOB).ms_replica_specs["Worker"].template
    assert pod["volumes"] == own["spec"]["volumes"]
    (container,) = pod["containers"]
    assert container == {"name": "node", "volumeMounts": own["spec"]["containers"][0]["volumeMounts"]}
    assert notes.errors == []
    assert "spec.runPolicy.backoffLimit: 2 is now 3" in [f"{item.field}: {item.change}" for item in notes.changes]


@pytest.mark.parametrize("name", ["golden", *VALID, *POLICIES])
def test_trainjobs_with_runtime_of_cluster_are_valid(name: str) -> None:
    job = MSJob.from_yaml(JOB) if name == "golden" else MSJob.from_dict({**VALID, **VALID_HERE}[name])
    if "PS" in job.ms_replica_specs:
        pytest.skip("parameter servers are refused")
    manifest, notes = export_shared(job)
    schema = read_definition("TrainJob")["versions"][0]["schema"]["openAPIV3Schema"]
    body = {key: value for key, value in manifest.items() if key != "metadata"}
    if not notes.errors:
        jsonschema.validate(body, schema)
    assert list(list_unknown(schema, body)) == []


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("initContainers", [{"name": "a", "image": "a"}], "initContainers"),
        ("hostNetwork", True, "hostNetwork"),
        ("priorityClassName", "high", "priorityClassName"),
    ],
)
def test_pods_that_trainjob_cannot_patch_are_refused(field: str, value: Any, path: str) -> None:
    job = build_msjob("lenet", command=COMMAND, image="a", workers=2)
    job.ms_replica_specs["Worker"].template["spec"][field] = value
    message = f"spec.msReplicaSpecs.Worker.template.spec.{path}: cannot be set with the ClusterTrainingRuntime "
    assert export_shared(job)[1].errors == [f"{message}mindspore-distributed"]


def test_containers_that_trainjob_cannot_patch_are_refused() -> None:
    job = build_msjob("lenet", command=COMMAND, image="a", workers=2)
    pod = job.ms_replica_specs["Worker"].template["spec"]
    pod["containers"][0]["workingDir"] = "/data"
    pod["containers"].append({"name": "sidecar", "image": "a"})
    errors = export_shared(job)[1].errors
    fields = [error.partition(": cannot be set")[0].partition("template.")[2] for error in errors]
    assert fields == ["spec.containers", "spec.containers[0].workingDir"]


@pytest.mark.parametrize(
    ("policy", "limit", "changes"),
    [
        ("ExitCode", 3, []),
        ("OnFailure", 3, ["OnFailure is now ExitCode"]),
        ("Never", 0, ["Never is now ExitCode", "0 is now 3"]),
    ],
)
def test_runtime_of_cluster_decides_restarts(policy: str, limit: int, changes: list[str]) -> None:
    job = build_msjob("lenet", command=COMMAND, image="a", workers=2, restart_policy=policy, backoff_limit=limit)
    assert [item.change for item in export_shared(job)[1].changes] == changes


def test_trainjob_has_ranks_by_index_and_jobsets_name_of_scheduler() -> None:
    runtime, manifest = MSJob.from_yaml(JOB).to("TrainJob")
    assert runtime["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "mindspore"}
    assert manifest["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "team-lenet"
    trainer = manifest["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["command"]) == (3, [*ENTRYPOINT, *COMMAND])
    variables = get_variables(trainer)
    assert variables["MS_SCHED_HOST"] == "lenet-scheduler-0-0.lenet"
    assert (variables["MS_ROLE"], variables["MS_WORKER_NUM"]) == ("MS_WORKER", "3")
    scheduler, node = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert (scheduler["name"], node["name"]) == ("scheduler", "node")
    (container,) = scheduler["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": 2}}
    assert get_variables(container)["MS_ROLE"] == "MS_SCHED"
    assert node["template"]["spec"]["completions"] == 3


def test_volcano_schedules_gang_and_runs_parameter_servers() -> None:
    replica = {"replicas": 2, "restartPolicy": "Never", "template": build_template(command=COMMAND)}
    (manifest,) = MSJob.from_dict(build_job(Worker=replica, PS=replica)).to("volcano")
    spec = manifest["spec"]
    assert {task["name"]: task["replicas"] for task in spec["tasks"]} == {"scheduler": 1, "ps": 2, "worker": 2}
    assert (spec["minAvailable"], spec["maxRetry"]) == (5, 1)
    assert {"event": "PodFailed", "action": "AbortJob"} in spec["policies"]
    assert set(spec["plugins"]) == {"env", "svc"}
    roles = [get_variables(task["template"]["spec"]["containers"][0]) for task in spec["tasks"]]
    assert [role["MS_ROLE"] for role in roles] == ["MS_SCHED", "MS_PSERVER", "MS_WORKER"]
    assert {(role["MS_SERVER_NUM"], role["MS_SCHED_HOST"]) for role in roles} == {("2", "digits-scheduler-0.digits")}


def test_rayjob_trains_in_workers_and_drives_from_head() -> None:
    (manifest,) = MSJob.from_yaml(JOB).to("RayJob")
    spec = manifest["spec"]
    assert spec["entrypoint"] == (
        "python -m kfp_mindspore.ray.job --name=lenet --workers=3 --min-workers=3 --max-failures=2 "
        "-- train.py --epochs 5"
    )
    assert (spec["shutdownAfterJobFinishes"], spec["ttlSecondsAfterFinished"]) == (True, 600)
    cluster = spec["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    (worker,) = group["template"]["spec"]["containers"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    assert worker["resources"] == {"limits": {"cpu": 2, "nvidia.com/gpu": 1}}
    assert head["resources"] == {"limits": {"cpu": 2}}
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "command" not in worker


@pytest.mark.parametrize(("cards", "total"), [(None, "3"), (8, "24")])
def test_ascendjob_counts_cards(cards: int | None, total: str) -> None:
    resources = {"limits": {"huawei.com/Ascend910": cards}} if cards else {}
    job = build_msjob("npu", command=COMMAND, image="a", workers=3, resources=resources)
    (manifest,) = job.to("AscendJob")
    assert manifest["metadata"]["labels"]["framework"] == "mindspore"
    assert manifest["spec"]["runPolicy"]["schedulingPolicy"]["minAvailable"] == 4
    worker = manifest["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = worker["containers"]
    assert container["name"] == "ascend"
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": cards or 1}
    variables = get_variables(container)
    assert (variables["MS_LOCAL_WORKER"], variables["MS_WORKER_NUM"]) == (str(cards or 1), total)
    assert variables["RANK_TABLE_FILE"] == "/user/serverid/devindex/config/hccl.json"
    assert worker["volumes"] == [{"name": "ranktable", "hostPath": {"path": "/user/mindx-dl/ranktable/default.npu"}}]
    (scheduler,) = manifest["spec"]["replicaSpecs"]["Scheduler"]["template"]["spec"]["containers"]
    assert "huawei.com/Ascend910" not in str(scheduler.get("resources"))


def test_first_generation_makes_worker_0_its_master() -> None:
    (manifest,) = MSJob.from_yaml(JOB).to("first-generation")
    assert [(item["replicaType"], item["replicas"]) for item in manifest["spec"]["replicaSpecs"]] == [
        ("MASTER", 1),
        ("WORKER", 2),
    ]


def test_dropped_fields_are_named() -> None:
    document = put(yaml.safe_load(JOB), "spec.topologyKey", "topology.kubernetes.io/zone")
    document["metadata"].update(uid="1", finalizers=["example.com/kept"])
    document["status"] = {"state": "Running", "conditions": []}
    changes = {change.field for change in export_job(MSJob.from_dict(document), "TrainJob").changes}
    policy = "spec.msReplicaSpecs.Worker.restartPolicy"
    object_fields = {"metadata.finalizers", "status"}
    assert changes == {"spec.topologyKey", "spec.runPolicy.schedulingPolicy", policy, *object_fields}


SERVERS = build_job(
    Worker={"template": build_template(command=COMMAND)}, PS={"template": build_template(command=COMMAND)}
)
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUED = put(yaml.safe_load(JOB), "metadata.labels", {QUEUE: "research"})
IMAGE_ONLY = put(yaml.safe_load(JOB), "spec.msReplicaSpecs.Worker.template.spec.containers[0].command", None)


@pytest.mark.parametrize(
    ("document", "kind", "error"),
    [
        (SERVERS, "MPIJob", "spec.msReplicaSpecs.PS: must be absent, MPIJob has no parameter servers"),
        (SERVERS, "TrainJob", "spec.msReplicaSpecs.PS: must be absent"),
        (SERVERS, "AscendJob", "spec.msReplicaSpecs.PS: must be absent"),
        (IMAGE_ONLY, "MPIJob", "containers[0].command: is required: mpirun starts it"),
        (IMAGE_ONLY, "volcano", "containers[0].command: is required, since the entry point is put before it"),
        (SERVERS, "RayJob", "spec.msReplicaSpecs.PS: must be absent, RayJob has no parameter servers"),
        (IMAGE_ONLY, "RayJob", "containers[0].command: must be a Python command such as [python, train.py], got"),
        (QUEUED, "AscendJob", f"metadata.labels.{QUEUE}: must be absent, Kueue manages MSJob, MPIJob, "),
        (QUEUED, "volcano", f"metadata.labels.{QUEUE}: must be absent"),
        (QUEUED, "legacy", f"metadata.labels.{QUEUE}: must be absent"),
        (SERVERS, "KatibJob", "kind: must be one of MPIJob, TrainJob, AscendJob, volcano, RayJob, legacy"),
    ],
)
def test_refusals(document: dict[str, Any], kind: str, error: str) -> None:
    with pytest.raises(ValidationError) as caught:
        MSJob.from_dict(document).to(kind)
    assert error in str(caught.value)


@pytest.mark.parametrize("kind", ["MPIJob", "TrainJob", "RayJob"])
def test_queue_is_label_of_kinds_that_kueue_manages(kind: str) -> None:
    assert MSJob.from_dict(QUEUED).to(kind)[-1]["metadata"]["labels"] == {QUEUE: "research"}


NAMED = "metadata: {name: a}"
MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi}
spec:
  slotsPerWorker: 1
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers:
            - name: launcher
              image: a
              command: [mpirun, -n, "2", -x, LEVEL=3, --mca, btl, tcp, python, train.py]
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: worker, image: a, command: [/usr/sbin/sshd, -De]}]}}
"""
VOLCANO = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: pi}
spec:
  minAvailable: 2
  tasks:
    - {name: scheduler, replicas: 1, template: {spec: {containers: [{name: a, image: a, command: [python]}]}}}
    - {name: worker, replicas: 1, template: {spec: {restartPolicy: Never, containers: [{name: a, image: a}]}}}
"""
ASCEND = """\
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata: {name: npu, labels: {framework: mindspore, ring-controller.atlas: ascend-910b}}
spec:
  replicaSpecs:
    Scheduler: {template: {spec: {containers: [{name: ascend, image: a}]}}}
    Worker:
      template:
        metadata: {labels: {ring-controller.atlas: ascend-910b}}
        spec:
          containers:
            - name: ascend
              image: a
              resources: {limits: {huawei.com/Ascend910: 8}}
              env: [{name: MS_WORKER_NUM, value: "8"}]
"""
TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: runtime}
spec:
  mlPolicy: {numNodes: 2}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            spec:
              template:
                spec: {containers: [{name: node, image: a, command: [python], env: [{name: A, value: b}]}]}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: pi}
spec: {runtimeRef: {name: runtime}, trainer: {env: [{name: C, value: d}]}}
"""
RUNTIME = "ClusterTrainingRuntime runtime: spec"


def test_mpijob_of_others_is_converted() -> None:
    job = convert_file(MPI).jobs[0]
    assert (job.workers, job.ms_replica_specs["Worker"].container["command"]) == (2, COMMAND)
    assert get_variables(job.ms_replica_specs["Worker"].container) == {"LEVEL": "3"}
    assert list(convert_file(VOLCANO).jobs[0].ms_replica_specs) == ["Scheduler", "Worker"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (MPI.replace("mpirun", "bash"), "must start with mpirun or mpiexec, got ['bash']"),
        (MPI.replace("--mca", "--gpu"), "unknown option of mpirun '--gpu'"),
        (MPI.replace("    Worker:", "    Slave:"), "spec.mpiReplicaSpecs: must have Launcher and Worker"),
        (VOLCANO.replace("scheduler", "monitor"), "spec.tasks: 'monitor' must be one of scheduler, ps and worker"),
        (VOLCANO.replace("  minAvailable: 2", "  networkTopology: {}"), "spec.networkTopology: cannot be converted"),
        (f"{NAMED}\napiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nspec: {{runtimeRef: {{name: b}}}}",
         "spec.runtimeRef.name: the ClusterTrainingRuntime 'b' must be in the same file"),
        (f"{NAMED}\napiVersion: mindxdl.gitee.com/v1\nkind: AscendJob\nspec: {{replicaSpecs: {{Master: {{}}}}}}",
         "spec.replicaSpecs.Master: must be Scheduler or Worker"),
        (MPI.replace("slotsPerWorker: 1", "runLauncherAsWorker: true"), "spec.runLauncherAsWorker: must be false"),
        (VOLCANO.replace("name: scheduler", "name: worker"), "must be one of scheduler, ps and worker, each once"),
        (VOLCANO.replace("minAvailable: 2", "minAvailable: 5"), "spec.minAvailable: must be at most the number"),
        (TRAIN.replace("{numNodes: 2}", "{mpi: {}}"), f"{RUNTIME}.mlPolicy.mpi: cannot be converted"),
        (TRAIN.replace("name: node\n", "name: launcher\n"), "must be 'node' or 'scheduler', each once, got 'launcher'"),
        (VOLCANO.replace("template: {spec", "template: {pod"), "spec.tasks[0].template.spec.containers: is required"),
        (ASCEND.replace("framework: mindspore", "framework: pytorch"), "metadata.labels.framework: must be mindspore"),
        (MPI.partition("spec:")[0] + "spec: {mpiReplicaSpecs: {Launcher: 1, Worker: 2}}", "is not that of a MPIJob"),
    ],
)  # fmt: skip
def test_foreign_jobs_without_equivalent_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValidationError) as caught:
        convert_file(text)
    assert error in str(caught.value)


def test_ascendjob_keeps_type_of_its_npus_and_explicit_scheduler() -> None:
    conversion = convert_file(ASCEND, to="AscendJob")
    (manifest,) = conversion.documents
    replicas = manifest["spec"]["replicaSpecs"]
    assert list(replicas) == ["Scheduler", "Worker"]
    owners = [manifest, *(replica["template"] for replica in replicas.values())]
    assert {owner["metadata"]["labels"]["ring-controller.atlas"] for owner in owners} == {"ascend-910b"}
    assert [str(change) for change in conversion.changes if "ring-controller" in change.field] == [
        "spec.msReplicaSpecs.Scheduler.template.metadata.labels.ring-controller.atlas: ascend-910b is added: it is the "
        "type of the NPU, such as ascend-910b"
    ]
    assert "MS_WORKER_NUM=8 dropped" in str([str(change) for change in conversion.changes])


@pytest.mark.parametrize("policy", ["OnFailure", "Never"])
@pytest.mark.parametrize("kind", ["MPIJob", "TrainJob", "AscendJob", "volcano", "legacy", "first-generation"])
def test_restart_policy_survives_round_trip(kind: str, policy: str) -> None:
    job = MSJob.from_yaml(JOB.replace("ExitCode", policy))
    back = convert_file(yaml.safe_dump_all(job.to(kind))).jobs[0]
    assert back.ms_replica_specs["Worker"].restart_policy == policy


def test_variables_of_runtime_and_its_trainjob_are_merged() -> None:
    twice = f"{TRAIN}---\n{TRAIN.partition('---')[2].replace('name: pi', 'name: tau')}"
    jobs = convert_file(twice).jobs
    assert [job.name for job in jobs] == ["pi", "tau"]
    assert [get_variables(job.ms_replica_specs["Worker"].container) for job in jobs] == [{"A": "b", "C": "d"}] * 2
    assert jobs[0].workers == 2


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (MPI.replace('"2"', '"8"'), "spec.mpiReplicaSpecs.Launcher.template: 8 ranks are 2 processes"),
        (MPI.replace("slotsPerWorker: 1", "slotsPerWorker: 4").replace('-n, "2", ', ""), "8 ranks are 2 processes"),
        (MPI, "containers[0].command: --mca btl tcp dropped"),
        (MPI.replace("containers:\n", "volumes: [{name: a, emptyDir: {}}]\n          containers:\n", 1),
         "spec.mpiReplicaSpecs.Launcher.template.spec.volumes: dropped"),
        (TRAIN.replace("{numNodes: 2}", "{torch: {}}"), f"{RUNTIME}.mlPolicy.torch: dropped"),
        (TRAIN.replace("trainer: {", "trainer: {numProcPerNode: 4, "), "spec.trainer.numProcPerNode: 4 dropped"),
        (TRAIN.replace("  mlPolicy:", "  podGroupPolicy: {volcano: {}}\n  mlPolicy:"), f"{RUNTIME}.podGroupPolicy: "),
        (VOLCANO.replace("  tasks:", "  plugins: {ssh: []}\n  tasks:"), "spec.plugins: dropped"),
        (VOLCANO.replace("restartPolicy: Never", "restartPolicy: OnFailure"),
         "spec.tasks[1].template.spec.restartPolicy: 'OnFailure' is now 'Never'"),
    ],
)  # fmt: skip
def test_fields_without_equivalent_are_listed(text: str, change: str) -> None:
    assert change in "\n".join(map(str, convert_file(text).changes))


GANG = put(yaml.safe_load(JOB), "spec.runPolicy.schedulingPolicy.minAvailable", 9)


@pytest.mark.parametrize("kind", ["MPIJob", "AscendJob", "volcano"])
def test_gang_above_number_of_pods_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"minAvailable: must be at most the number of pods \(4\), got 9"):
        MSJob.from_dict(GANG).to(kind)


def test_submitting_another_kind_hints_at_convert() -> None:
    with pytest.raises(ValidationError) as caught:
        MSJob.from_yaml(VOLCANO)
    assert caught.value.hint == (
        "It is a job of batch.volcano.sh/v1alpha1; convert it with: kfp-mindspore job convert FILE"
    )


@pytest.mark.parametrize(
    ("max_retry", "restarts", "policy"),
    [(None, 2, "OnFailure"), (0, 2, "OnFailure"), (1, 0, "Never"), (4, 3, "OnFailure")],
)
def test_volcano_restarts_as_often_as_its_msjob(max_retry: int | None, restarts: int, policy: str) -> None:
    replica = {"replicas": 2, "restartPolicy": "OnFailure", "template": build_template(command=COMMAND)}
    (manifest,) = MSJob.from_dict(build_job(Worker=replica)).to("volcano")
    manifest["spec"]["maxRetry"] = max_retry
    if max_retry is None:
        del manifest["spec"]["maxRetry"]
    job = convert_file(yaml.safe_dump(manifest)).jobs[0]
    assert job.effective_run_policy.backoff_limit == restarts
    assert job.ms_replica_specs["Worker"].restart_policy == policy
