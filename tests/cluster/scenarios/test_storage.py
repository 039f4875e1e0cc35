"""Launcher steps in pods, as KFP's launcher starts them, whose jobs read and write the artifacts of an S3 store."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl

from kfp_mindspore.dsl import msjob_component
from kfp_mindspore.formats.dataset import load_dataset
from kfp_mindspore.kube.resources import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, PODS, SECRETS, Resource
from kfp_mindspore.msjob.names import JOB_LABEL, MSJOBS
from kfp_mindspore.runs.access import list_permissions
from tests.cluster.infrastructure.images import PYTHON
from tests.cluster.infrastructure.packages import PodPackages
from tests.support.node_jobs import NodeJobs
from tests.support.object_store import BUCKET, ObjectStore, start_object_store
from tests.support.operators import wait_for

ROOT = Path(__file__).parents[3]
ACCOUNT = "pipeline-runner"
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
UUID = "0b6f5a9e-52f0-4a0c-8f37-90a7b4a6b1aa"
# Three processes of MindSpore on two busy cores.
SECONDS = 500.0
EPOCHS = 12


@pytest.fixture(scope="module")
def store(own_cluster: Any) -> Iterator[ObjectStore]:
    with start_object_store(own_cluster.network.outside) as store:
        yield store


class StepPod:
    """The pod of a step: a compiled component's command, with the service account and the rights of a run."""

    def __init__(
        self, jobs: NodeJobs, packages: PodPackages, component: Path, inputs: dict[str, str], **values: Any
    ) -> None:
        self.jobs = jobs
        self.name = f"step-{secrets.token_hex(4)}"
        document = next(iter(yaml.safe_load_all(component.read_text())))
        (spec,) = document["components"].values()
        self.key = f"artifacts/{self.name}/train/{UUID}"
        parameters = spec.get("inputDefinitions", {}).get("parameters", {})
        defaults = {name: entry["defaultValue"] for name, entry in parameters.items() if "defaultValue" in entry}
        # The driver's JSON of a protobuf number has no fraction.
        defaults = {name: int(value) if isinstance(value, float) else value for name, value in defaults.items()}
        # What KFP passes through for kfp-kubernetes' setters: here the packages of the test's image.
        task_config = {
            "env": packages.environment,
            "volumes": packages.volumes,
            "volumeMounts": packages.mounts,
        }
        outputs = spec.get("outputDefinitions", {})
        executor_input = {
            "inputs": {
                "parameterValues": {**defaults, "task_config": task_config, **values},
                "artifacts": {
                    name: {"artifacts": [self._describe(name, "system.Dataset", uri)]} for name, uri in inputs.items()
                },
            },
            "outputs": {
                "artifacts": {
                    name: {"artifacts": [self._describe(name, entry["artifactType"]["schemaTitle"])]}
                    for name, entry in outputs.get("artifacts", {}).items()
                },
                "parameters": {
                    name: {"outputFile": f"/tmp/kfp/outputs/{name}"} for name in outputs.get("parameters", {})
                },
                "outputFile": f"/s3/{BUCKET}/{self.key}/output_metadata.json",
            },
        }
        (executor,) = document["deploymentSpec"]["executors"].values()
        container = executor["container"]
        command = [
            part.replace("{{$}}", json.dumps(executor_input)) for part in [*container["command"], *container["args"]]
        ]
        # KFP's launcher reads the output file; here it is the last line of the log.
        script = f'"$@"; code=$?; cat {executor_input["outputs"]["outputFile"]}; exit $code'
        pod = {
            "serviceAccountName": ACCOUNT,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {
                    "name": "main",
                    "image": PYTHON,
                    "command": ["sh", "-c", script, "step", *(part.replace("$", "$$") for part in command)],
                    "env": [
                        {"name": "KFP_POD_NAME", "value": self.name},
                        {"name": "KFP_MINDSPORE_IMAGE", "value": PYTHON},
                    ],
                }
            ],
        }
        metadata = {"name": self.name, "labels": {"pipeline/runid": self.name}}
        jobs.api.create(
            PODS,
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": packages.add_to(pod)},
            jobs.namespace,
        )

    def _describe(self, name: str, kind: str, uri: str = "") -> dict[str, Any]:
        uri = uri or f"s3://{BUCKET}/{self.key}/{name}"
        return {"name": name, "uri": uri, "type": {"schemaTitle": kind, "schemaVersion": "0.0.1"}, "metadata": {}}

    def get_phase(self) -> str:
        """Return the phase of the pod."""
        return str(self.jobs.api.get(PODS, self.name, self.jobs.namespace)["status"].get("phase", ""))

    def read_log(self) -> str:
        """Return the log of the step."""
        return self.jobs.api.read_log(self.name, self.jobs.namespace)

    def wait(self) -> dict[str, Any]:
        """Wait for the success of the step and return KFP's ExecutorOutput."""
        wait_for(lambda: self.get_phase() in ("Succeeded", "Failed"), self.read_log, SECONDS)
        assert self.get_phase() == "Succeeded", self.read_log()
        output: dict[str, Any] = json.loads(self.read_log().splitlines()[-1])
        return output

    def wait_job(self) -> dict[str, Any]:
        """Wait for the job of the step and return it."""
        labels = f"pipeline/runid={self.name}"
        found: list[dict[str, Any]] = []

        def exists() -> bool:
            assert self.get_phase() != "Failed", self.read_log()
            found[:] = self.jobs.api.list(MSJOBS, self.jobs.namespace, labels=labels)
            return bool(found)

        wait_for(exists, self.read_log, SECONDS)
        return found[0]


@pytest.fixture
def run(jobs: NodeJobs, store: ObjectStore) -> NodeJobs:
    """A namespace with KFP's configuration and the rights of `pipeline setup`."""
    rules = [item.to_rule() for capability in ("run", "training") for item in list_permissions(capability)]  # type: ignore[arg-type]
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": jobs.namespace}],
    }
    config, secret = store.build_kfp_configuration()
    for resource, document in (
        (ACCOUNTS, {}),
        (ROLES, {"rules": rules}),
        (BINDINGS, binding),
        (CONFIG_MAPS, config),
        (SECRETS, secret),
    ):
        name = document.get("metadata", {}).get("name", ACCOUNT)
        body = {
            **document,
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": jobs.namespace},
        }
        jobs.api.apply(body)
    return jobs


@pytest.mark.mindspore
def test_training_on_two_workers_loses_no_epoch(
    run: NodeJobs, store: ObjectStore, pod_packages: PodPackages, tmp_path: Path
) -> None:
    dataset = load_dataset("digits", tmp_path / "digits").path
    for file in dataset.iterdir():
        store.put(f"artifacts/load/dataset/{file.name}", file.read_bytes())
    step = StepPod(
        run,
        pod_packages,
        ROOT / "components/training/train_msjob/component.yaml",
        {"dataset": f"s3://{BUCKET}/artifacts/load/dataset"},
        command=["python", "-m", "kfp_mindspore.digits.train"],
        hyperparameters={"epochs": EPOCHS},
        workers=2,
    )
    name = step.wait_job()["metadata"]["name"]
    prefix = f"{step.key}/msjob-checkpoints/"
    wait_for(
        lambda: any(key.endswith("/checkpoint.json") for key in store.list(prefix)),
        lambda: f"no checkpoint in {store.list()}: {step.read_log()}",
        SECONDS,
    )
    processes = run.cluster.find_processes(run.namespace, f"{name}-worker-1")
    processes[0].send(9)
    output = step.wait()
    assert f"{step.key}/model/checkpoint/checkpoint.json" in store.list()
    records = [json.loads(line) for line in store.get(f"{step.key}/model/metrics.jsonl").splitlines()]
    assert [record["epoch"] for record in records] == list(range(1, EPOCHS + 1))
    assert store.list(prefix) == []
    job = run.api.get(MSJOBS, name, run.namespace)
    assert job["status"]["restarts"] == 1
    assert "resuming from" in run.api.read_log(f"{name}-worker-0", run.namespace)
    metadata = output["artifacts"]["model"]["artifacts"][0]["metadata"]
    assert (metadata["workers"], metadata["epoch"]) == (2, EPOCHS)
    assert output["artifacts"]["metrics"]["artifacts"][0]["metadata"]["loss"] == records[-1]["loss"]
    for pod in run.api.list(PODS, run.namespace, labels=f"{JOB_LABEL}={name}"):
        (container,) = pod["spec"]["containers"]
        secret = [entry for entry in container["env"] if entry["name"].startswith("KFP_MINDSPORE_STORE_0")]
        assert secret
        assert all("value" not in entry for entry in secret)


@msjob_component(workers=2)
def count(text: str, report: dsl.Output[dsl.Artifact]) -> int:
    import os
    from pathlib import Path

    Path(report.path).write_text(f"rank {os.environ['MS_NODE_ID']}: {text}")
    return len(text)


def test_function_returns_the_outputs_of_worker_0(
    run: NodeJobs, store: ObjectStore, pod_packages: PodPackages, tmp_path: Path
) -> None:
    compiler.Compiler().compile(count, str(tmp_path / "count.yaml"))
    step = StepPod(run, pod_packages, tmp_path / "count.yaml", {}, text="four")
    output = step.wait()
    assert output["parameterValues"] == {"Output": 4}
    assert output["artifacts"]["report"]["artifacts"][0]["uri"] == f"s3://{BUCKET}/{step.key}/report"
    assert store.get(f"{step.key}/report") == b"rank 0: four"


def test_claim_holds_the_data_of_a_job(
    run: NodeJobs, store: ObjectStore, pod_packages: PodPackages, tmp_path: Path
) -> None:
    directory = run.cluster.make_volume(f"{run.namespace}-claim")
    # A provisioner would apply the fsGroup of the pods.
    directory.chmod(0o777)
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": ""}
    name = f"{run.namespace}-data"
    volume = {**spec, "hostPath": {"path": str(directory)}}
    metadata = {"name": name}
    run.api.create(VOLUMES, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume})
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    run.api.create(
        PERSISTENT_VOLUME_CLAIMS,
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": claim},
        run.namespace,
    )
    store.put("artifacts/load/text/a.txt", "12345")
    script = (
        "import os, pathlib; data, out = (pathlib.Path(os.environ[f'KFP_MINDSPORE_{name}_DIR']) "
        "for name in ('DATASET', 'OUTPUT')); (out / 'copy').write_text((data / 'a.txt').read_text())"
    )
    try:
        step = StepPod(
            run,
            pod_packages,
            ROOT / "components/training/train_msjob/component.yaml",
            {"dataset": f"s3://{BUCKET}/artifacts/load/text"},
            command=["python", "-c", script],
            workers=1,
            storage="claim:data/jobs",
        )
        step.wait()
        assert store.get(f"{step.key}/model/copy") == b"12345"
        (folder,) = (directory / "jobs").iterdir()
        assert (folder / "inputs/0/text/a.txt").read_text() == "12345"
    finally:
        run.api.delete(VOLUMES, name)
