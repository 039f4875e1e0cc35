"""Steps whose job runs in pods: the pods' own command as a process, artifacts in moto, secrets by reference."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError
from kfp_mindspore.msjob.build import JobOptions, PodPatch
from kfp_mindspore.settings import BACKEND_VARIABLE
from kfp_mindspore.steps.handover import storage
from kfp_mindspore.steps.launch import function, train
from tests.support.kube.fake_api_server import FakeApiServer
from tests.support.remote.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore, start_object_store

ROOT = f"minio://{BUCKET}/artifacts/run/train/uuid"
KEY = "artifacts/run/train/uuid"
SECRET = {"accesskey": ACCESS_KEY, "secretkey": SECRET_KEY}

SOURCE = """
from kfp import dsl
from kfp.dsl import *
from typing import List, NamedTuple

def work(dataset: Input[Dataset], parts: Input[List[Dataset]], model: Output[Model], note: OutputPath(str),
         factor: int = 2) -> NamedTuple("Outputs", [("size", int), ("where", str)]):
    import os
    from pathlib import Path
    assert dataset.path == os.environ["KFP_MINDSPORE_DATASET_DIR"]
    assert model.path == os.environ["KFP_MINDSPORE_OUTPUT_DIR"]
    text = Path(dataset.path, "a.txt").read_text() + "".join(Path(part.path).read_text() for part in parts)
    Path(model.path).mkdir()
    Path(model.path, "weights").write_text(text * factor)
    model.metadata["framework"] = "none"
    Path(note).write_text("noted")
    return len(text), dataset.uri
"""


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        yield store


@pytest.fixture
def pods(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A cluster with KFP's configuration whose jobs are one process each; yield their environments."""
    started: list[dict[str, Any]] = []
    with FakeApiServer().serve() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "kubeconfig", namespace="team")))
        monkeypatch.setenv(BACKEND_VARIABLE, "kubernetes")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        monkeypatch.setattr(storage, "_DATA_DIR", str(tmp_path / "empty-dir"))
        secret = {key: base64.b64encode(value.encode()).decode() for key, value in SECRET.items()}
        provider = {
            "endpoint": store.url,
            "region": "us-east-1",
            "credentials": {
                "secretRef": {"secretName": "minio", "accessKeyKey": "accesskey", "secretKeyKey": "secretkey"}
            },
        }
        for collection, name, data in (
            ("configmaps", "kfp-launcher", {"providers": yaml.safe_dump({"minio": {"default": provider}})}),
            ("secrets", "minio", secret),
        ):
            api.put(
                f"/api/v1/namespaces/team/{collection}", {"metadata": {"name": name, "namespace": "team"}, "data": data}
            )

        def launch(root: str, command: Sequence[str], options: JobOptions, **kwargs: Any) -> str:
            patch: PodPatch = kwargs["pod"]
            environment = {**os.environ, **options.env, **kwargs["env"]}
            for entry in patch.env:
                reference = entry.get("valueFrom", {}).get("secretKeyRef")
                environment[entry["name"]] = SECRET[reference["key"]] if reference else entry["value"]
            started.append({"root": root, "patch": patch, "directories": kwargs["env"]})
            done = subprocess.run(
                [part.replace("$$", "$") for part in command],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise ProcessFailedError(f"exit code {done.returncode}", log=done.stderr.splitlines())
            return "job"

        monkeypatch.setattr(train, "launch_job", launch)
        monkeypatch.setattr(function, "launch_job", launch)
        yield started


def make_model(name: str = "model") -> dsl.Model:
    return dsl.Model(name=name, uri=f"{ROOT}/{name}", metadata={})


def test_training_reads_and_writes_artifacts(store: ObjectStore, pods: list[dict[str, Any]], tmp_path: Path) -> None:
    store.put("artifacts/run/load/uuid/dataset/a.txt", "12345")
    script = (
        "import json, os, pathlib; data, out = (pathlib.Path(os.environ[f'KFP_MINDSPORE_{name}_DIR']) "
        "for name in ('DATASET', 'OUTPUT')); text = (data / 'a.txt').read_text(); "
        "(out / 'metrics.jsonl').write_text(json.dumps({'epoch': 1, 'loss': len(text)}) + '\\n')"
    )
    model, metrics = make_model(), dsl.Metrics(uri=f"{ROOT}/metrics")
    curves = dsl.HTML(uri=str(tmp_path / "curves"))
    dataset = dsl.Dataset(uri=f"minio://{BUCKET}/artifacts/run/load/uuid/dataset")
    train.train_model(model, metrics, curves, ["python", "-c", script], JobOptions(), dataset=dataset, namespace="team")
    assert metrics.metadata["loss"] == 5
    assert model.metadata["job"] in (tmp_path / "curves").read_text()
    assert store.list(f"{KEY}/") == [f"{KEY}/model/metrics.jsonl"]
    assert pods[0]["root"] == ROOT
    assert not Path(model.path).exists()
    values = [entry.get("value", "") for entry in pods[0]["patch"].env]
    assert not [value for value in values if SECRET_KEY in value]


def test_training_without_output_fails(store: ObjectStore, pods: list[dict[str, Any]]) -> None:
    with pytest.raises(ProcessFailedError, match="succeeded, but its output directory is empty"):
        train.train_model(make_model(), dsl.Metrics(), dsl.HTML(), ["python", "-c", ""], JobOptions(), namespace="team")


def test_failed_training_keeps_its_output_and_names_exit_code(store: ObjectStore, pods: list[dict[str, Any]]) -> None:
    script = (
        "import os, pathlib; pathlib.Path(os.environ['KFP_MINDSPORE_OUTPUT_DIR'], 'x').touch(); raise SystemExit(3)"
    )
    with pytest.raises(ProcessFailedError, match="exit code 3"):
        train.train_model(
            make_model(), dsl.Metrics(), dsl.HTML(), ["python", "-c", script], JobOptions(), namespace="team"
        )
    assert store.list(KEY) == [f"{KEY}/model/x"]


def test_output_outside_object_store_is_refused(pods: list[dict[str, Any]], tmp_path: Path) -> None:
    model = dsl.Model(uri=str(tmp_path / "model"))
    with pytest.raises(UserError, match="pods of a job cannot read this URI"):
        train.train_model(model, dsl.Metrics(), dsl.HTML(), ["true"], JobOptions(), namespace="team")
    assert pods == []


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        (
            "minio://absent/artifacts/model",
            UserError,
            "the job is not submitted: minio://absent/artifacts cannot be listed",
        ),
        (
            "s3://closed/artifacts/model",
            KfpMindSporeError,
            "the job is not submitted: s3://closed/artifacts .* Could not connect",
        ),
    ],
)
def test_unreachable_store_is_refused_before_job(
    uri: str, error: type[Exception], message: str, pods: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the environment")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(error, match=message):
        train.train_model(dsl.Model(uri=uri), dsl.Metrics(), dsl.HTML(), ["true"], JobOptions(), namespace="team")
    assert pods == []


def test_function_reads_and_writes_artifacts(
    store: ObjectStore, pods: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("artifacts/run/load/uuid/dataset/a.txt", "12345")
    for index in (0, 1):
        store.put(f"artifacts/run/split-{index}/uuid/part", f"part {index}")
    source = tmp_path / "component.py"
    source.write_text(SOURCE)
    namespace: dict[str, Any] = {"__file__": str(source)}
    exec(compile(SOURCE, str(source), "exec", dont_inherit=True), namespace)
    note = tmp_path / "outputs" / "note"
    uris = [f"minio://{BUCKET}/artifacts/run/split-{index}/uuid/part" for index in (0, 1)]
    kinds = {"dataset": "system.Dataset", "model": "system.Model"}

    def describe(name: str, *uris: str) -> dict[str, Any]:
        kind = {"schemaTitle": kinds.get(name, "system.Dataset"), "schemaVersion": "0.0.1"}
        return {"artifacts": [{"name": name, "uri": uri, "type": kind, "metadata": {}} for uri in uris]}

    dataset_uri = f"minio://{BUCKET}/artifacts/run/load/uuid/dataset"
    executor_input = {
        "inputs": {
            "parameterValues": {"factor": 3},
            "artifacts": {"dataset": describe("dataset", dataset_uri), "parts": describe("parts", *uris)},
        },
        "outputs": {
            "artifacts": {"model": describe("model", f"{ROOT}/model")},
            "parameters": {"note": {"outputFile": str(note)}, "size": {"outputFile": str(tmp_path / "size")}},
            "outputFile": f"/minio/{BUCKET}/{KEY}/output_metadata.json",
        },
    }
    monkeypatch.setattr(sys, "argv", ["step", "--executor_input", json.dumps(executor_input)])
    model = make_model()
    launched = function.launch_function(namespace["work"], "{}")
    result = launched(
        dataset=dsl.Dataset(uri=dataset_uri),
        parts=[dsl.Dataset(uri=uri) for uri in uris],
        model=model,
        note=str(note),
        factor=3,
    )
    assert result == (17, dataset_uri)
    assert store.get(f"{KEY}/model/weights") == b"12345part 0part 1" * 3
    assert (model.uri, model.metadata, model.custom_path) == (f"{ROOT}/model", {"framework": "none"}, "")
    assert note.read_text() == "noted"
    assert pods[0]["root"] == ROOT
    assert not Path("/minio", BUCKET).exists()
