"""Kubeflow's SDK and Trainer with the runtimes of `kfp-mindspore trainer runtime`, beside an MSJob of the same work."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset
from kfp_mindspore.formats.checkpoint import Checkpoint
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS, Resource
from kfp_mindspore.msjob import KubernetesBackend, MSJob, MSJobClient, build_msjob
from kfp_mindspore.msjob.api.names import JOB_LABEL
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.training_runtime import DISTRIBUTED, SINGLE, build_node_limit, build_training_runtime
from kfp_mindspore.settings import DATASET_VARIABLE, OUTPUT_VARIABLE
from tests.cluster.infrastructure.cluster import Cluster as NodeCluster
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.controllers.trainer_cluster import run_trainer
from tests.support.kube.operators import OperatorProcess, wait_for
from tests.support.remote.object_store import BUCKET, ObjectStore

SDK_VARIABLE = "KFP_MINDSPORE_KUBEFLOW_SDK"
FOLDER = Path(__file__).parents[1] / "kubeflow_sdk"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
SECONDS = 400.0
EPOCHS = 12


class TrainerUser:
    """A namespace with data, in which jobs of Trainer and MSJobs train digits.

    Args:
        cluster: The cluster, with Trainer.
        namespace: The namespace.
        packages: The pods' packages.
    """

    def __init__(self, cluster: NodeCluster, namespace: str, packages: PodPackages) -> None:
        self.cluster, self.namespace, self.packages = cluster, namespace, packages
        self.api = Cluster(cluster.kubeconfig)
        self.client = MSJobClient(KubernetesBackend(namespace, kubeconfig=cluster.kubeconfig))
        self.volume = cluster.make_volume(f"{namespace}-trainer")
        load_dataset("digits", self.volume / "data")
        self.jobs, self.job_sets, self.runtimes = (
            self.api.resolve_resource(version, kind)
            for version, kind in (
                ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
                ("jobset.x-k8s.io/v1alpha2", "JobSet"),
                ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"),
            )
        )

    def get_variables(self, output: str) -> dict[str, str]:
        return {DATASET_VARIABLE: "/mnt/data", OUTPUT_VARIABLE: f"/mnt/{output}"}

    def add_volume(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return a pod's spec with packages and data."""
        pod = self.packages.add_to(pod)
        pod["volumes"].append({"name": "data", "hostPath": {"path": str(self.volume), "type": "Directory"}})
        for container in pod["containers"]:
            # The packages set HOME, as the runtime does.
            container["env"] = list({item["name"]: item for item in container["env"]}.values())
            container["volumeMounts"].append({"name": "data", "mountPath": "/mnt"})
        return pod

    def apply_runtime(self, kind: str, name: str, restarts: int = 3, checkpoints: str = "") -> None:
        """Apply a runtime, by another name."""
        options = JobOptions(image=PYTHON, backoff_limit=restarts)
        runtime = build_training_runtime(kind, options, checkpoints=checkpoints)
        runtime["metadata"]["name"] = name
        template = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template["spec"] = self.add_volume(template["spec"])
        self.api.apply(runtime)

    def run_cells(self, file: str, **arguments: Any) -> str:
        """Return what a notebook prints in the environment of Kubeflow's SDK."""
        if not (python := os.environ.get(SDK_VARIABLE)):
            pytest.skip(f"{SDK_VARIABLE} names no Python with Kubeflow's SDK: run `make test-kubeflow`")
        given = {"kubeconfig": str(self.cluster.kubeconfig), "namespace": self.namespace, **arguments}
        command = [python, str(FOLDER / "run_cells.py"), str(FOLDER / file), json.dumps(given)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def get_condition(self, name: str) -> str:
        """Return a TrainJob's final condition, or nothing."""
        conditions = self.api.get(self.jobs, name, self.namespace).get("status", {}).get("conditions", [])
        found = {item["type"] for item in conditions if item["status"] == "True"}
        return next((item for item in ("Complete", "Failed") if item in found), "")

    def complete(self, name: str) -> None:
        """Wait until a TrainJob is complete."""

        def is_complete() -> bool:
            assert self.get_condition(name) != "Failed", self.explain(name)
            return self.get_condition(name) == "Complete"

        wait_for(is_complete, lambda: self.explain(name), SECONDS)

    def explain(self, name: str) -> str:
        job_set = self.api.get(self.job_sets, name, self.namespace)["status"]
        logs = [self.api.read_log(pod, self.namespace, last=20) for pod in self.list_pods(name)]
        return "\n".join([json.dumps(job_set), *logs])

    def list_pods(self, name: str) -> list[str]:
        """Return a TrainJob's pods by rank."""
        pods = self.api.list(PODS, self.namespace, labels=f"{JOBSET_LABEL}={name}")
        return [pod["metadata"]["name"] for pod in sorted(pods, key=lambda pod: pod["metadata"]["labels"][INDEX_LABEL])]

    def evict(self, pod: str) -> None:
        """Evict a pod, as draining its node does."""
        from kubernetes.client import CoreV1Api, V1Eviction, V1ObjectMeta

        with self.cluster.client() as client:
            body = V1Eviction(metadata=V1ObjectMeta(name=pod, namespace=self.namespace))
            CoreV1Api(client).create_namespaced_pod_eviction(pod, self.namespace, body)

    def make_claim(self, name: str) -> Path:
        """Create a claim; return its directory."""
        directory = self.cluster.make_volume(f"{self.namespace}-{name}")
        spec = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {**spec, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(directory)}}
        full = f"{self.namespace}-{name}"
        self.api.create(
            VOLUMES, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": full}, "spec": volume}
        )
        claim = {**spec, "volumeName": full, "resources": {"requests": {"storage": "1Gi"}}}
        document = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim}
        self.api.create(PERSISTENT_VOLUME_CLAIMS, document, self.namespace)
        return directory

    def measure_start(self, created: str, pod: str) -> float:
        """Return the seconds from a job's creation to the end of its first epoch, by a pod's log."""
        from kubernetes.client import CoreV1Api

        with self.cluster.client() as client:
            log = CoreV1Api(client).read_namespaced_pod_log(pod, self.namespace, timestamps=True)
        line = next(line for line in log.splitlines() if "epoch 1/" in line)
        # The kubelet writes nanoseconds.
        first, second = (datetime.datetime.fromisoformat(time[:19]) for time in (line, created))
        return (first - second).total_seconds()


@pytest.fixture(scope="module")
def user(
    own_cluster: NodeCluster, shared_operator: tuple[str, OperatorProcess], pod_packages: PodPackages
) -> Iterator[TrainerUser]:
    """Return Trainer's user, with both runtimes."""
    with run_trainer(own_cluster, gates=["TrainJobStatus"]):
        user = TrainerUser(own_cluster, shared_operator[0], pod_packages)
        for name in (DISTRIBUTED, SINGLE):
            user.apply_runtime(name, name)
        for item in build_node_limit():
            user.api.apply(item)
        yield user
        # Trainer keeps a runtime while a TrainJob refers to it.
        for resource, namespace in ((user.jobs, user.namespace), (user.runtimes, "")):
            for item in user.api.list(resource, namespace):
                user.api.delete(resource, item["metadata"]["name"], namespace)
            wait_for(
                lambda resource=resource, namespace=namespace: not user.api.list(resource, namespace),
                lambda resource=resource: f"{resource.kind}s are left",
                SECONDS,
            )
        for item in build_node_limit():
            user.api.delete(user.api.resolve_resource(item["apiVersion"], item["kind"]), item["metadata"]["name"])


def read_weights(output: Path) -> dict[str, np.ndarray]:
    from mindspore import load_checkpoint

    parameters = load_checkpoint(str(Checkpoint.open(output / "checkpoint").network_file))
    return {name: parameter.asnumpy() for name, parameter in parameters.items()}


def check_equal_weights(first: Path, second: Path) -> None:
    own, other = read_weights(first), read_weights(second)
    assert own.keys() == other.keys()
    assert max(float(np.abs(own[name] - other[name]).max()) for name in own) < 1e-6


def build_digits(user: TrainerUser, name: str) -> MSJob:
    words = ["python", "-m", "kfp_mindspore.workloads.digits.train", "--epochs", "2"]
    env = user.get_variables(name)
    return build_msjob(name, command=words, image=PYTHON, workers=2, namespace=user.namespace, env=env)


@pytest.mark.mindspore
def test_notebook_trains_on_two_nodes_what_msjob_does(user: TrainerUser) -> None:
    found = json.loads(user.run_cells("sdk_notebook.py", variables=user.get_variables("trainjob")))
    assert found["runtimes"] == {DISTRIBUTED: "mindspore", SINGLE: "mindspore"}
    mistakes = found["mistakes"]
    assert "Failed to get Runtime: mindspore-other" in mistakes["unknown"]
    assert "BuiltinTrainer can't be used with" in mistakes["builtin"]
    assert "BuiltinTrainer can't be used with" in mistakes["builtin-alone"]
    assert "must be 1 with the runtime mindspore; mindspore-distributed is for several" in mistakes["nodes"]
    assert "must be 1 with the runtime mindspore;" in mistakes["negative"]
    assert "must have dataset-initializer job" in mistakes["initializer"]
    assert "TypeError" in mistakes["object"]
    assert "is Failed" in mistakes["lambda"]
    assert "SyntaxError" in mistakes["lambda-log"]
    assert "is Failed" in mistakes["other-cell"]
    assert "NameError: name 'factor' is not defined" in mistakes["other-cell-log"]
    assert found["error"] == "", found
    assert "epoch" in found["logs"][0]
    job = user.api.get(user.jobs, found["name"], user.namespace)
    status = job["status"]["trainerStatus"]
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (100, 0)
    assert {"loss", "accuracy"} <= {item["name"] for item in status["metrics"]}

    template = (own := build_digits(user, "msjob")).ms_replica_specs["Worker"].template
    template["spec"] = user.add_volume(template["spec"])
    user.client.create_job(own)
    user.client.wait_for_job_conditions("msjob", timeout=500)
    check_equal_weights(user.volume / "trainjob", user.volume / "msjob")
    pods = user.api.list(PODS, user.namespace, labels=f"{JOB_LABEL}=msjob")
    worker = next(pod["metadata"]["name"] for pod in pods if "worker-0" in pod["metadata"]["name"])
    created = user.client.get_job("msjob").metadata["creationTimestamp"]
    seconds = user.measure_start(job["metadata"]["creationTimestamp"], user.list_pods(found["name"])[0])
    print(f"first epoch after {seconds} s (TrainJob), {user.measure_start(created, worker)} s (MSJob)")


@pytest.mark.mindspore
def test_killed_node_resumes_at_checkpoint_in_claim(user: TrainerUser) -> None:
    claim = user.make_claim("checkpoints")
    user.apply_runtime(DISTRIBUTED, "in-claim", restarts=1, checkpoints="claim:checkpoints")
    name = submit(user, "in-claim")
    wait_for(lambda: list(claim.glob(f"{name}/**/checkpoint.json")), lambda: user.explain(name), SECONDS)
    user.cluster.find_processes(user.namespace, user.list_pods(name)[1])[0].send(9)
    user.complete(name)
    check_resumed(user, name, counted=1)


@pytest.mark.mindspore
def test_evicted_node_resumes_at_uri_without_counting(user: TrainerUser, artifact_store: ObjectStore) -> None:
    user.apply_runtime(DISTRIBUTED, "at-uri", restarts=0, checkpoints=f"s3://{BUCKET}/trainjobs")
    store = artifact_store
    keys = {"AWS_ACCESS_KEY_ID": store.key, "AWS_SECRET_ACCESS_KEY": store.secret, "AWS_ENDPOINT_URL": store.url}
    name = submit(user, "at-uri", **keys)
    prefix = f"trainjobs/{name}/"
    wait_for(
        lambda: any(key.endswith("checkpoint.json") for key in store.list(prefix)), lambda: user.explain(name), SECONDS
    )
    user.evict(user.list_pods(name)[1])
    user.complete(name)
    check_resumed(user, name, counted=0)


def submit(user: TrainerUser, runtime: str, **variables: str) -> str:
    variables = {**user.get_variables(runtime), **variables}
    return user.run_cells("sdk_submit.py", runtime=runtime, epochs=EPOCHS, variables=variables).strip()


def check_resumed(user: TrainerUser, name: str, counted: int) -> None:
    status = user.api.get(user.job_sets, name, user.namespace)["status"]
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, counted)
    log = user.api.read_log(user.list_pods(name)[0], user.namespace)
    assert "resuming from" in log
    assert f"{EPOCHS}/{EPOCHS}" in log, log


@pytest.mark.mindspore
def test_submitted_trainjob_shares_runtime(user: TrainerUser) -> None:
    before = {item["metadata"]["name"] for item in user.api.list(user.runtimes)}
    job = build_digits(user, "shared")
    pod = job.ms_replica_specs["Worker"].template["spec"]
    pod["volumes"] = [{"name": "extra", "emptyDir": {}}]
    pod["tolerations"] = [{"key": "extra", "operator": "Exists"}]
    pod["containers"][0]["volumeMounts"] = [{"name": "extra", "mountPath": "/extra"}]
    user.client.create_job(job, job_kind="TrainJob")
    user.complete("shared")
    assert {item["metadata"]["name"] for item in user.api.list(user.runtimes)} == before
    (spec, _) = (item["spec"] for item in user.api.list(PODS, user.namespace, labels=f"{JOBSET_LABEL}=shared"))
    mounts = {item["mountPath"] for item in spec["containers"][0]["volumeMounts"]}
    assert {"/extra", "/mnt"} <= mounts
    assert len(Checkpoint.open(user.volume / "shared" / "checkpoint").path.parts) > 1
