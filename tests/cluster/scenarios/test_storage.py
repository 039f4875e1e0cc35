"""Launcher steps in pods, as KFP's launcher starts them, whose jobs read and write the artifacts of an S3 store."""

import json
from pathlib import Path

import pytest
from kfp import compiler, dsl

from kfp_mindspore.data import load_dataset
from kfp_mindspore.dsl import msjob_component
from kfp_mindspore.kube.resources import PERSISTENT_VOLUME_CLAIMS, PODS, Resource
from kfp_mindspore.msjob.api.names import JOB_LABEL, MSJOBS
from tests.support.kube.operators import wait_for
from tests.support.kube.step_pods import SECONDS, TRAIN, StepRunner
from tests.support.remote.object_store import BUCKET, ObjectStore

VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
EPOCHS = 12


@pytest.mark.mindspore
def test_training_on_two_workers_loses_no_epoch(
    training_steps: StepRunner, artifact_store: ObjectStore, tmp_path: Path
) -> None:
    run, store = training_steps, artifact_store
    dataset = load_dataset("digits", tmp_path / "digits").path
    for file in dataset.iterdir():
        store.put(f"artifacts/load/dataset/{file.name}", file.read_bytes())
    step = run.create(
        TRAIN,
        {"dataset": f"s3://{BUCKET}/artifacts/load/dataset"},
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": EPOCHS},
        workers=2,
    )
    step.start()
    name = step.wait_job()["metadata"]["name"]
    prefix = f"{step.key}/msjob-checkpoints/"
    wait_for(
        lambda: any(key.endswith("/checkpoint.json") for key in store.list(prefix)),
        lambda: f"no checkpoint in {store.list()}: {step.read_log()}",
        SECONDS,
    )
    run.cluster.find_processes(run.namespace, f"{name}-worker-1")[0].send(9)
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


def test_function_returns_outputs_of_worker_0(
    training_steps: StepRunner, artifact_store: ObjectStore, tmp_path: Path
) -> None:
    run, store = training_steps, artifact_store
    compiler.Compiler().compile(count, str(tmp_path / "count.yaml"))
    step = run.create(tmp_path / "count.yaml", text="four")
    output = step.finish()
    assert output["parameterValues"] == {"Output": 4}
    assert output["artifacts"]["report"]["artifacts"][0]["uri"] == f"s3://{BUCKET}/{step.key}/report"
    assert store.get(f"{step.key}/report") == b"rank 0: four"


def test_claim_holds_data_of_job(training_steps: StepRunner, artifact_store: ObjectStore, tmp_path: Path) -> None:
    run, store = training_steps, artifact_store
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
        step = run.create(
            TRAIN,
            {"dataset": f"s3://{BUCKET}/artifacts/load/text"},
            command=["python", "-c", script],
            workers=1,
            storage="claim:data/jobs",
        )
        step.finish()
        assert store.get(f"{step.key}/model/copy") == b"12345"
        (folder,) = (directory / "jobs").iterdir()
        assert (folder / "inputs/0/text/a.txt").read_text() == "12345"
    finally:
        run.api.delete(VOLUMES, name)
