"""Launcher steps, started as Kubeflow Pipelines starts them, against a real API server: killed, retried, terminated."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kfp_mindspore.data import load_dataset
from kfp_mindspore.kube.resources import CONFIG_MAPS, PODS, SECRETS, Resource
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.msjob.api.names import LEASE_ANNOTATION, MSJOBS
from kfp_mindspore.msjob.lease import format_lease
from kfp_mindspore.operator.install.apply import apply_objects
from kfp_mindspore.runs.compiled.spec import read_spec
from kfp_mindspore.settings import DATASET_VARIABLE
from kfp_mindspore.steps.handover.step_pod import RUN_LABEL
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.support.http_server import Server
from tests.support.kube.operators import SECONDS, Jobs, OperatorProcess, wait_for
from tests.support.kube.pod_processes import PodProcesses
from tests.support.remote.mlflow_server import MlflowServer
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store

ROOT = Path(__file__).parents[2]
WORKFLOWS = Resource("argoproj.io", "v1alpha1", "workflows", "Workflow")
WORKFLOW_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "workflows.argoproj.io"},
    "spec": {
        "group": "argoproj.io",
        "names": {"kind": "Workflow", "plural": "workflows"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
CONTAINER_STATUS = {
    "name": "mindspore",
    "image": "example.com/train:1",
    "imageID": "",
    "ready": False,
    "restartCount": 0,
}
UUID = "0b6f5a9e-52f0-4a0c-8f37-90a7b4a6b1aa"


class Step:
    """A compiled component's command in a process, with the environment of KFP's executor.

    Args:
        run: The run that it belongs to.
        component: Folder of the component below `components/`.
        arguments: Values of its parameters.
    """

    def __init__(self, run: Run, component: str, **arguments: Any) -> None:
        self.run, self.name = run, component.rpartition("/")[2]
        document = read_spec(ROOT / "components" / component / "component.yaml")
        (spec,) = document["components"].values()
        self.root = run.directory / self.name.replace("_", "-") / UUID
        # KFP keeps the output root for retries.
        self.key = f"{run.id}/{self.name.replace('_', '-')}/{UUID}"
        inputs, outputs = spec["inputDefinitions"]["parameters"], spec.get("outputDefinitions", {})
        values = {name: entry["defaultValue"] for name, entry in inputs.items() if "defaultValue" in entry}
        # The driver's JSON of a protobuf number has no fraction.
        values = {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in values.items()
        }
        executor_input = {
            "inputs": {"parameterValues": {**values, **arguments}},
            "outputs": {
                "artifacts": {
                    name: {
                        "artifacts": [
                            {
                                "name": name,
                                "type": entry["artifactType"],
                                "uri": f"s3://{BUCKET}/{self.key}/{name}",
                                "metadata": {},
                            }
                        ]
                    }
                    for name, entry in outputs.get("artifacts", {}).items()
                },
                "parameters": {name: {"outputFile": str(self.root / name)} for name in outputs.get("parameters", {})},
                "outputFile": str(self.root / "output_metadata.json"),
            },
        }
        (executor,) = document["deploymentSpec"]["executors"].values()
        container = executor["container"]
        self.command = [
            part.replace("{{$}}", json.dumps(executor_input)) for part in [*container["command"], *container["args"]]
        ]
        self.log = run.directory / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.pod = ""
        run.steps.append(self)

    def start(self, **variables: str) -> None:
        """Start an attempt, in a new pod of the run, with further environment variables."""
        self.pod = self.run.put_pod()
        environment = {
            # Credentials of a task take precedence over those of the run's store: a pod has none of other tests.
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KUBECONFIG": str(self.run.kubeconfig),
            "KFP_MINDSPORE_BACKEND": "kubernetes",
            "KFP_MINDSPORE_IMAGE": "example.com/train:1",
            "KFP_POD_NAME": self.pod,
            "PYTHONPATH": str(self.run.write_site()),
            **variables,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def send(self, number: int) -> None:
        """Send a signal to the process group, as the kubelet's runtime does."""
        assert self.process is not None
        os.killpg(self.process.pid, number)

    def wait(self) -> int:
        """Wait for the end and return the exit code."""
        assert self.process is not None
        return self.process.wait(SECONDS)

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self.process.wait()


class Run:
    """A run of Kubeflow Pipelines: its Workflow, the pods of its steps and its artifacts."""

    def __init__(self, jobs: Jobs, kubeconfig: Path, directory: Path, store: ObjectStore) -> None:
        self.jobs, self.kubeconfig, self.store = jobs, kubeconfig, store
        self.id = secrets.token_hex(8)
        self.steps: list[Step] = []
        # Environment of the steps' pods, which are no processes.
        self.pod_env: list[dict[str, Any]] = []
        self.directory = directory / self.id
        self.directory.mkdir()
        workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": f"run-{self.id}"}}
        made = jobs.cluster.create(WORKFLOWS, workflow, jobs.namespace)
        self.uid = made["metadata"]["uid"]
        self.owner = {**workflow, "metadata": None, "name": f"run-{self.id}", "uid": self.uid}
        del self.owner["metadata"]

    def write_site(self) -> Path:
        """Write a module that moves KFP's mount point /s3, which tests may not create, and return its directory."""
        site = self.directory / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(
            "from kfp.dsl.types import artifact_types\n"
            f"artifact_types._S3_LOCAL_MOUNT_PREFIX = {str(self.directory / 's3')!r} + '/'\n"
        )
        return site

    def put_pod(self) -> str:
        """Create the pod of a step, which no node runs."""
        name = f"step-{secrets.token_hex(4)}"
        metadata = {"name": name, "labels": {RUN_LABEL: self.id}, "ownerReferences": [self.owner]}
        spec = {"containers": [{"name": "main", "image": "example.com/step:1", "env": self.pod_env}]}
        self.jobs.cluster.create(
            PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, self.jobs.namespace
        )
        return name

    def list_jobs(self) -> list[dict[str, Any]]:
        """Return the MSJobs of the namespace."""
        return self.jobs.cluster.list(MSJOBS, self.jobs.namespace)

    def wait_job(self, check: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Wait until one job exists and passes a check."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            for step in self.steps:
                assert step.process is not None
                assert step.process.poll() in (None, -signal.SIGKILL), step.log.read_text()
            found[:] = self.list_jobs()
            assert len(found) <= 1, f"more than one job: {[job['metadata']['name'] for job in found]}"
            return bool(found) and check(found[0])

        wait_for(is_there, lambda: f"no such job: {found}\n" + "\n".join(step.log.read_text() for step in self.steps))
        return found[0]

    def wait_no_job(self, seconds: float) -> None:
        """Wait until the namespace has no job and none of its pods."""
        wait_for(lambda: not self.list_jobs(), lambda: f"still there: {self.list_jobs()}", seconds)


@pytest.fixture
def jobs(api_server: ControlPlane, api_namespace: str) -> Jobs:
    for _ in apply_objects([build_crd(), WORKFLOW_DEFINITION], kubeconfig=str(api_server.kubeconfig)):
        pass
    return Jobs(api_server.kubeconfig, api_namespace)


@pytest.fixture
def operator(api_server: ControlPlane, jobs: Jobs, tmp_path: Path) -> Iterator[OperatorProcess]:
    with OperatorProcess(api_server.kubeconfig, tmp_path / "operator.log", "--namespace", jobs.namespace) as process:
        yield process


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        yield store


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with MlflowServer(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture
def make_run(api_server: ControlPlane, jobs: Jobs, tmp_path: Path, store: ObjectStore) -> Callable[[], Run]:
    kubeconfig = tmp_path / "kubeconfig"
    document = yaml.safe_load(api_server.kubeconfig.read_text())
    for context in document["contexts"]:
        context["context"]["namespace"] = jobs.namespace
    kubeconfig.write_text(yaml.safe_dump(document))
    for resource, configuration in zip((CONFIG_MAPS, SECRETS), store.build_kfp_configuration(), strict=True):
        jobs.cluster.create(resource, configuration, jobs.namespace)
    return lambda: Run(jobs, kubeconfig, tmp_path, store)


@pytest.fixture
def start_step() -> Iterator[Callable[..., Step]]:
    with contextlib.ExitStack() as stack:

        def start(
            run: Run,
            component: str = "training/train_msjob",
            variables: dict[str, str] | None = None,
            **arguments: Any,
        ) -> Step:
            step = Step(run, component, **arguments)
            stack.callback(step.close)
            step.start(**variables or {})
            return step

        yield start


def train(run: Run, start_step: Callable[..., Step], **arguments: Any) -> Step:
    return start_step(run, command=["python", "train.py"], namespace=run.jobs.namespace, **arguments)


def test_killed_launcher_adopts_its_running_job(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    step = train(run, start_step)
    job = run.wait_job()
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    assert name.startswith("train-msjob-")
    run.jobs.launch(name, 1)
    step.send(signal.SIGKILL)
    step.wait()
    step.start()
    wait_for(lambda: b"Adopting job" in step.log.read_bytes(), lambda: step.log.read_text())
    # What the training command writes.
    run.store.put(f"{step.key}/model/metrics.jsonl", '{"loss": 0.5}\n')
    run.jobs.end(f"{name}-worker-0", 0)
    assert step.wait() == 0, step.log.read_text()
    assert [item["metadata"]["uid"] for item in run.list_jobs()] == [uid]
    output = json.loads((step.root / "output_metadata.json").read_text())
    assert output["artifacts"]["metrics"]["artifacts"][0]["metadata"] == {"loss": 0.5}
    # The result of a job that has succeeded meanwhile is read, too.
    step.start()
    assert step.wait() == 0, step.log.read_text()
    assert [item["metadata"]["uid"] for item in run.list_jobs()] == [uid]


def test_failed_job_of_earlier_attempt_is_replaced(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    step = train(run, start_step, restart_policy="Never")
    job = run.wait_job()
    name = job["metadata"]["name"]
    run.jobs.launch(name, 1)
    run.jobs.end(f"{name}-worker-0", 1)
    assert step.wait() != 0
    assert f"job {name} failed" in step.log.read_text()
    step.start()
    again = run.wait_job(lambda item: item["metadata"]["uid"] != job["metadata"]["uid"])
    assert again["metadata"]["name"] == name


def test_job_has_lease_and_belongs_to_run(
    make_run: Callable[[], Run], jobs: Jobs, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    step = train(run, start_step)
    job = run.wait_job()
    assert job["metadata"]["labels"][RUN_LABEL] == run.id
    assert [owner["uid"] for owner in job["metadata"]["ownerReferences"]] == [run.uid]
    first = job["metadata"]["annotations"][LEASE_ANNOTATION]
    run.wait_job(lambda item: item["metadata"]["annotations"][LEASE_ANNOTATION] > first)
    warning = f"no operator has reconciled job {job['metadata']['name']}"
    wait_for(lambda: warning in step.log.read_text(), step.log.read_text)
    step.send(signal.SIGKILL)
    step.wait()
    # Deletion of the run deletes its Workflow.
    jobs.cluster.delete(WORKFLOWS, f"run-{run.id}", jobs.namespace)
    run.wait_no_job(SECONDS)


def test_terminated_step_deletes_its_job(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    step = train(run, start_step)
    run.wait_job()
    wait_for(lambda: len(run.jobs.pods(run.list_jobs()[0]["metadata"]["name"])) == 1, lambda: "no pod")
    begin = time.monotonic()
    step.send(signal.SIGTERM)
    run.wait_no_job(10)
    assert time.monotonic() - begin < 10
    assert step.wait() != 0


def test_job_of_drained_launcher_is_adopted_by_its_retry(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    step = train(run, start_step)
    job = run.wait_job()
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    run.jobs.launch(name, 1)
    # A finalizer keeps the pod, which no kubelet terminates, as the grace period does on a node.
    run.jobs.cluster.patch(PODS, step.pod, run.jobs.namespace, {"metadata": {"finalizers": ["tests/kept"]}})
    run.jobs.cluster.delete(PODS, step.pod, run.jobs.namespace)
    step.send(signal.SIGTERM)
    assert step.wait() != 0
    run.jobs.cluster.patch(PODS, step.pod, run.jobs.namespace, {"metadata": {"finalizers": None}})
    assert [item["metadata"]["uid"] for item in run.list_jobs()] == [uid]
    step.start()
    wait_for(lambda: b"Adopting job" in step.log.read_bytes(), lambda: step.log.read_text())
    # Nobody comes back.
    run.jobs.cluster.delete(PODS, step.pod, run.jobs.namespace)
    step.send(signal.SIGTERM)
    assert step.wait() != 0
    expired = {"metadata": {"annotations": {LEASE_ANNOTATION: format_lease(-600)}}}

    def expire() -> bool:
        # Again: a process of the launcher that ends later extends the lease.
        run.jobs.cluster.patch(MSJOBS, name, run.jobs.namespace, expired)
        found = run.jobs.cluster.get(MSJOBS, name, run.jobs.namespace)
        return "LeaseExpired" in [condition["reason"] for condition in found["status"]["conditions"]]

    wait_for(expire, lambda: step.log.read_text())


def test_exit_task_ends_jobs_of_its_run_only(
    make_run: Callable[[], Run], jobs: Jobs, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    step = train(run, start_step)
    run.wait_job()
    step.send(signal.SIGKILL)
    step.wait()
    jobs.create("foreign")
    stop = start_step(run, "training/stop_msjobs")
    assert stop.wait() == 0, stop.log.read_text()
    assert [item["metadata"]["name"] for item in run.list_jobs()] == ["foreign"]


def test_running_job_of_another_step_is_refused(
    make_run: Callable[[], Run], jobs: Jobs, start_step: Callable[..., Step]
) -> None:
    jobs.create("mine")
    run = make_run()
    step = train(run, start_step, job_name="mine")
    assert step.wait() != 0
    assert "job mine exists already" in step.log.read_text()
    assert [item["metadata"]["name"] for item in run.list_jobs()] == ["mine"]


def test_task_config_and_options_reach_pods_of_job(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step]
) -> None:
    run = make_run()
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}}
    options = {
        "workers": "{{$.inputs.parameters['msjob-option--count']}}",
        "service_account": "default",
        "pod_labels": {"team": "vision"},
        "delete_after_done": True,
    }
    step = train(
        run,
        start_step,
        variables={"KFP_MINDSPORE_MSJOB_OPTIONS": json.dumps(options)},
        task_config={
            "env": [
                secret,
                {"name": "KFP_MINDSPORE_MSJOB_OPTIONS", "value": "{}"},
                {"name": "MLFLOW_TRACKING_AUTH", "value": "kubernetes"},
            ],
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "npu", "operator": "Exists"}],
            "resources": {"limits": {"cpu": "2"}, "requests": {}},
            "volumes": [{"name": "data", "emptyDir": {}}],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        **{"msjob-option--count": 2},
    )
    name = run.wait_job()["metadata"]["name"]
    pods = run.jobs.wait_pods(name, lambda found: len(found) == 3)
    for pod in (pods[f"{name}-worker-0"], pods[f"{name}-worker-1"]):
        spec = pod["spec"]
        container = next(item for item in spec["containers"] if item["name"] == "mindspore")
        assert pod["metadata"]["labels"]["team"] == "vision"
        assert spec["nodeSelector"] == {"zone": "a"}
        assert {"key": "npu", "operator": "Exists"} in spec["tolerations"]
        assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("default", True)
        assert container["resources"]["limits"] == {"cpu": "2"}
        assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
        variables = {item["name"]: item for item in container["env"]}
        assert variables["KEY"] == secret
        assert "KFP_MINDSPORE_MSJOB_OPTIONS" not in variables
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    status = {"phase": "Pending", "containerStatuses": [{**CONTAINER_STATUS, "state": waiting}]}
    run.jobs.cluster.patch(PODS, f"{name}-worker-0", run.jobs.namespace, {"status": status}, subresource="status")
    wait_for(lambda: "Waiting: " in step.log.read_text(), lambda: step.log.read_text())
    assert f"{name}-worker-0: ImagePullBackOff" in step.log.read_text()
    run.jobs.launch(name, 3)
    run.jobs.end(f"{name}-worker-0", 1, reason="OOMKilled")
    assert step.wait() != 0
    assert "OOMKilled" in step.log.read_text()
    run.wait_no_job(SECONDS)


def test_documented_data_are_read_with_credentials_of_run(
    make_run: Callable[[], Run], start_step: Callable[..., Step], store: ObjectStore, tmp_path: Path
) -> None:
    (uri,) = re.findall(r"-p data=(s3://\S+)", (ROOT / "docs/pipelines.md").read_text())
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    store.client.create_bucket(Bucket=bucket)
    for split, rows in (("train", 60), ("test", 20)):
        np.savez(tmp_path / split, features=np.ones((rows, 2), np.float32), labels=np.arange(rows) % 2)
        store.client.upload_file(str(tmp_path / f"{split}.npz"), bucket, f"{key}{split}.npz")
    step = start_step(make_run(), "data_processing/load_dataset", name=uri)
    assert step.wait() == 0, step.log.read_text()
    output = json.loads((step.root / "output_metadata.json").read_text())
    assert json.loads(output["artifacts"]["dataset"]["artifacts"][0]["metadata"]["splits"])["test"] == 20


@pytest.mark.parametrize("place", ["s3", "http", "volume"])
def test_csv_of_each_documented_place_is_loaded(
    place: str, make_run: Callable[[], Run], start_step: Callable[..., Step], store: ObjectStore, tmp_path: Path
) -> None:
    page = (ROOT / "docs/csv-on-a-cluster.md").read_text()
    assert f"| {place}" in page
    text = "age,income,city,price\n" + "".join(f"{row},{row / 10},Oslo,{row * 2.5}\n" for row in range(60))
    (uri,) = set(re.findall(r"-p dataset=(s3://\S+)", page))
    file = tmp_path / "volume" / "sales.csv"
    file.parent.mkdir()
    file.write_text(text)
    store.put(uri.removeprefix(f"s3://{BUCKET}/"), text)
    with Server(partial(SimpleHTTPRequestHandler, directory=str(file.parent))) as server:
        source = {"s3": uri, "http": f"{server.url}/sales.csv", "volume": str(file)}[place]
        step = start_step(make_run(), "data_processing/load_dataset", name=source, target=["price"])
        assert step.wait() == 0, step.log.read_text()
    output = json.loads((step.root / "output_metadata.json").read_text())
    assert sum(json.loads(output["artifacts"]["dataset"]["artifacts"][0]["metadata"]["splits"]).values()) == 60


def test_refused_data_are_one_message(make_run: Callable[[], Run], jobs: Jobs, start_step: Callable[..., Step]) -> None:
    run = make_run()
    jobs.cluster.delete(SECRETS, "mlpipeline-minio-artifact", jobs.namespace)
    step = start_step(run, "data_processing/load_dataset", name=f"s3://{BUCKET}/table.csv")
    assert step.wait() != 0
    log = step.log.read_text()
    assert "Traceback" not in log
    assert f"Secret {jobs.namespace}/mlpipeline-minio-artifact with the credentials of s3://{BUCKET}/ does not" in log


SWEEP_SPACE = "x: [1.3, 2.3, 10.0, 0.3]"


def start_sweep(run: Run, start_step: Callable[..., Step], script: str = "sweep_script.py", **arguments: Any) -> Step:
    return start_step(
        run,
        "training/sweep_msjob",
        command=["python", str(ROOT / "tests/support/training" / script)],
        objective="loss",
        namespace=run.jobs.namespace,
        **{
            "hyperparameters": {"seconds": 1.5},
            "space": SWEEP_SPACE,
            "sampler": "grid",
            "trials": 4,
            **arguments,
        },
    )


def test_killed_launcher_goes_on_with_its_sweep(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step], tmp_path: Path
) -> None:
    run = make_run()
    with PodProcesses(run.jobs, tmp_path / "pods") as pods:
        step = start_sweep(run, start_step)
        wait_for(lambda: b"trial 0 complete" in step.log.read_bytes(), lambda: step.log.read_text())
        name = run.wait_job(lambda job: job["metadata"]["name"].endswith("-1"))["metadata"]["name"]
        step.send(signal.SIGKILL)
        step.wait()
        step.start()
        assert step.wait() == 0, step.log.read_text()
        starts, codes = dict(pods.starts), dict(pods.codes)
    log = step.log.read_text()
    assert f"Adopting job {name} of an earlier attempt" in log
    prefix = name.removesuffix("-1")
    assert starts == {f"{prefix}-{number}": 1 for number in range(4)}, "no trial is lost or run twice"
    assert {number: codes[f"{prefix}-{number}"] for number in range(4)} == {0: 0, 1: 0, 2: 143, 3: 0}
    assert run.list_jobs() == []
    output = json.loads((step.root / "output_metadata.json").read_text())
    metadata = output["artifacts"]["model"]["artifacts"][0]["metadata"]
    assert (metadata["trial"], metadata["job"]) == (3, f"{prefix}-3")
    assert output["parameterValues"]["best_parameters"] == {"x": 0.3}
    table = (run.directory / "s3" / BUCKET / step.key / "trial_table").read_text()
    assert [re.split(r" ?\| ?", line)[1:3] for line in table.splitlines()[2:]] == [
        ["3", "complete"],
        ["0", "complete"],
        ["1", "complete"],
        ["2", "pruned"],
    ]
    trials = [f"{step.key}/sweep/trials/{number}/metrics.jsonl" for number in range(4)]
    for key in trials:
        records = [json.loads(line) for line in run.store.get(key).splitlines()]
        assert len({record["pid"] for record in records}) == 1
    assert run.store.get(f"{step.key}/model/metrics.jsonl") == run.store.get(trials[3])


def test_population_goes_on_from_winners_checkpoints_in_store(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step], tmp_path: Path
) -> None:
    run = make_run()
    options = {"pruner": "pbt", "population": 2, "interval": 2, "sampler": "random", "hyperparameters": {}}
    with PodProcesses(run.jobs, tmp_path / "pods"):
        step = start_sweep(
            run, start_step, "population_script.py", space="rate: {low: 0.1, high: 4.0}", parallel=2, **options
        )
        assert step.wait() == 0, step.log.read_text()
    trials = [
        [json.loads(line) for line in run.store.get(f"{step.key}/sweep/trials/{number}/metrics.jsonl").splitlines()]
        for number in range(4)
    ]
    # The second generation goes on where the first one has ended.
    assert [[record["epoch"] for record in records] for records in trials] == [[1, 2], [1, 2], [3, 4], [3, 4]]
    best = min(record["loss"] for records in trials for record in records)
    output = json.loads((step.root / "output_metadata.json").read_text())
    assert output["parameterValues"]["best_value"] == best
    left = [name for name in run.store.list(step.key) if "/checkpoints/" in name]
    assert left == [], "no trial goes on from them any more"


def test_terminated_sweep_deletes_its_jobs(
    make_run: Callable[[], Run], operator: OperatorProcess, start_step: Callable[..., Step], tmp_path: Path
) -> None:
    run = make_run()
    with PodProcesses(run.jobs, tmp_path / "pods"):
        step = start_sweep(run, start_step, parallel=2)
        wait_for(lambda: len(run.list_jobs()) == 2, lambda: step.log.read_text())
        step.send(signal.SIGTERM)
        assert step.wait() != 0
        run.wait_no_job(SECONDS)
        assert f"{step.key}/sweep/journal.log" in run.store.list(step.key)


@pytest.mark.mindspore
def test_training_logs_into_mlflow_run_of_step(
    make_run: Callable[[], Run],
    operator: OperatorProcess,
    start_step: Callable[..., Step],
    mlflow_server: MlflowServer,
    tmp_path: Path,
) -> None:
    run = make_run()
    metadata = {"name": "kfp-mlflow-credentials"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": "abc"}}
    run.jobs.cluster.create(SECRETS, secret, run.jobs.namespace)
    reference = {"name": "kfp-mlflow-credentials", "key": "token"}
    token = {"name": "MLFLOW_TRACKING_TOKEN", "valueFrom": {"secretKeyRef": reference}}
    run.pod_env.append(token)
    dataset = load_dataset("digits", tmp_path / "digits")
    with PodProcesses(run.jobs, tmp_path / "pods"):
        experiment = mlflow_server.client.create_experiment("training")
        number = mlflow_server.client.create_run(experiment).info.run_id
        # As the driver of KFP 2.17 with its MLflow plugin sets them: in the step, and in TaskConfig.
        variables = {
            "MLFLOW_RUN_ID": number,
            "MLFLOW_TRACKING_URI": mlflow_server.url,
            "MLFLOW_EXPERIMENT_ID": experiment,
        }
        step = start_step(
            run,
            variables=variables,
            command=[sys.executable, "-m", "kfp_mindspore.workloads.digits.train", "--epochs", "2"],
            env={DATASET_VARIABLE: str(dataset.path)},
            namespace=run.jobs.namespace,
            task_config={"env": [{"name": name, "value": value} for name, value in variables.items()]},
        )
        (worker,) = run.jobs.wait_pods(run.wait_job()["metadata"]["name"], bool).values()
        assert token in worker["spec"]["containers"][0]["env"]
        assert step.wait() == 0, step.log.read_text()
        (found,) = mlflow_server.client.search_runs([experiment])
        assert (found.info.run_id, found.info.status) == (number, "RUNNING"), "KFP's driver ends it"
        assert found.data.params["epochs"] == "2"
        assert found.data.tags["checkpoint"]
        records = [json.loads(line) for line in run.store.get(f"{step.key}/model/metrics.jsonl").splitlines()]
        assert mlflow_server.get_steps(number, "accuracy") == [record["step"] for record in records]
        assert found.data.metrics["loss"] == records[-1]["loss"]


@pytest.mark.mindspore
def test_trials_log_into_runs_nested_in_run_of_step(
    make_run: Callable[[], Run],
    operator: OperatorProcess,
    start_step: Callable[..., Step],
    mlflow_server: MlflowServer,
    tmp_path: Path,
) -> None:
    run = make_run()
    dataset = load_dataset("digits", tmp_path / "digits")
    client = mlflow_server.client
    experiment = client.create_experiment("sweep")
    number = client.create_run(experiment).info.run_id
    variables = {"MLFLOW_RUN_ID": number, "MLFLOW_TRACKING_URI": mlflow_server.url, "MLFLOW_EXPERIMENT_ID": experiment}
    with PodProcesses(run.jobs, tmp_path / "pods"):
        step = start_step(
            run,
            "training/sweep_msjob",
            variables=variables,
            command=[sys.executable, "-m", "kfp_mindspore.workloads.digits.train", "--epochs", "1"],
            objective="accuracy",
            space="learning_rate: [0.003, 0.001]",
            sampler="grid",
            trials=2,
            env={DATASET_VARIABLE: str(dataset.path)},
            namespace=run.jobs.namespace,
            task_config={"env": [{"name": name, "value": value} for name, value in variables.items()]},
        )
        assert step.wait() == 0, step.log.read_text()
    assert client.get_run(number).data.metrics == {}
    trials = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{number}'")
    assert [trial.info.status for trial in trials] == ["FINISHED"] * 2
    output = json.loads((step.root / "output_metadata.json").read_text())
    best = max(trials, key=lambda trial: trial.data.metrics["accuracy"])
    assert best.data.metrics["accuracy"] == output["parameterValues"]["best_value"]
