"""Hand-over of data to the pods of a job: volumes, entrypoint and refusals of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import ProcessFailedError, UserError, ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.steps.handover.storage import JobStorage, get_root_uri, plan_storage
from kfp_mindspore.steps.handover.storage_spec import StorageSpec, parse_storage
from tests.support.kube.fake_api_server import FakeApiServer

ROOT = "s3://bucket/artifacts/run/train/uuid"
DATASET = "s3://bucket/artifacts/run/load/uuid/dataset"


@pytest.fixture
def cluster(api: FakeApiServer, tmp_path: Path) -> Cluster:
    return Cluster(api.write_kubeconfig(tmp_path / "config", namespace="team"))


def put_claim(api: FakeApiServer, name: str) -> None:
    api.put(
        "/api/v1/namespaces/team/persistentvolumeclaims",
        {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "team"}},
    )


def plan(cluster: Cluster, storage: str, **changes: Any) -> JobStorage:
    arguments: dict[str, Any] = {
        "root": ROOT,
        "folder": "train-0123",
        "cluster": cluster,
        "namespace": "team",
        "inputs": {DATASET: "/s3/bucket/artifacts/run/load/uuid/dataset"},
        "outputs": {"model/": f"{ROOT}/model"},
        "workflow": "digits-x7k",
    }
    return plan_storage(storage, **{**arguments, **changes})


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("", StorageSpec("artifacts")),
        ("artifacts", StorageSpec("artifacts")),
        ("workspace", StorageSpec("workspace")),
        ("workspace/a/b", StorageSpec("workspace", path="a/b")),
        ("{{$.workspace_path}}", StorageSpec("workspace")),
        ("/kfp-workspace/jobs", StorageSpec("workspace", path="jobs")),
        ("claim:data", StorageSpec("claim", "data")),
        ("claim:data/", None),
        ("claim:data/a/b/", StorageSpec("claim", "data", "a/b")),
        ("claim:", None),
        ("claim:Data", None),
        ("claim:data/../x", None),
        ("workspace/../x", None),
        ("s3://bucket", None),
        ("/data", None),
    ],
)
def test_storage_texts(text: str, spec: StorageSpec | None) -> None:
    if spec is None:
        with pytest.raises(ValidationError, match="must be artifacts, workspace or claim:NAME/PATH, got"):
            parse_storage(text)
    else:
        assert parse_storage(text) == spec


def test_artifacts_are_read_from_empty_directory(cluster: Cluster) -> None:
    storage = plan(cluster, "")
    assert storage.patch.volumes == [{"name": "kfp-mindspore-data", "emptyDir": {}}]
    assert storage.patch.volume_mounts == [{"name": "kfp-mindspore-data", "mountPath": "/kfp-mindspore"}]
    assert storage.inputs == {DATASET: "/kfp-mindspore/inputs/0/dataset"}
    assert storage.outputs == {"model/": "/kfp-mindspore/outputs/model"}
    assert storage.checkpoint_dir == "/kfp-mindspore/checkpoints"
    assert [*storage.wrapper, "python", "train.py"] == [
        *("python", "-m", "kfp_mindspore.podside.artifacts"),
        *("--download", DATASET, "/kfp-mindspore/inputs/0/dataset"),
        *("--upload", "/kfp-mindspore/outputs/model", f"{ROOT}/model", "--mkdir", "/kfp-mindspore/outputs/model/"),
        *("--checkpoints", "/kfp-mindspore/checkpoints", f"{ROOT}/msjob-checkpoints"),
        *("--", "python", "train.py"),
    ]


@pytest.mark.parametrize(
    ("storage", "claim", "mount", "base"),
    [
        ("workspace", "digits-x7k-kfp-workspace", "/kfp-workspace", "/kfp-workspace/train-0123"),
        ("claim:data/jobs", "data", "/kfp-mindspore-claim", "/kfp-mindspore-claim/jobs/train-0123"),
    ],
)
def test_claims_hold_data_and_checkpoints(
    storage: str, claim: str, mount: str, base: str, api: FakeApiServer, cluster: Cluster
) -> None:
    with pytest.raises(UserError, match=f"claim team/{claim} does not exist"):
        plan(cluster, storage)
    put_claim(api, claim)
    planned = plan(cluster, storage)
    assert planned.patch.volumes[0]["persistentVolumeClaim"] == {"claimName": claim}
    assert planned.patch.volume_mounts[0]["mountPath"] == mount
    # A new volume belongs to root.
    assert planned.patch.security_context["fsGroup"] == 1000
    assert planned.inputs == {DATASET: f"{base}/inputs/0/dataset"}
    assert planned.checkpoint_dir == f"{base}/checkpoints"
    assert "--shared" in planned.wrapper
    assert "--checkpoints" not in planned.wrapper


def test_claim_is_that_of_job_namespace(api: FakeApiServer, cluster: Cluster) -> None:
    put_claim(api, "data")
    put_claim(api, "digits-x7k-kfp-workspace")
    with pytest.raises(UserError, match="claim jobs/data does not exist"):
        plan(cluster, "claim:data", job_namespace="jobs")
    with pytest.raises(UserError, match="the run's claim is in namespace team, the job in jobs"):
        plan(cluster, "workspace", job_namespace="jobs")
    assert plan(cluster, "artifacts", job_namespace="jobs").patch.security_context == {}


def test_workspace_of_task_config_takes_precedence(api: FakeApiServer, cluster: Cluster) -> None:
    put_claim(api, "mine")
    volume = {"name": "kfp-workspace", "persistentVolumeClaim": {"claimName": "mine"}}
    planned = plan(cluster, "workspace", workflow="", patch=PodPatch(volumes=[volume]))
    assert planned.patch.volumes == [volume]
    with pytest.raises(UserError, match="Workflow of this step is unknown"):
        plan(cluster, "workspace", workflow="")


def test_inputs_in_workspace_are_not_downloaded(api: FakeApiServer, cluster: Cluster) -> None:
    put_claim(api, "digits-x7k-kfp-workspace")
    path = "/kfp-workspace/.artifacts/s3/bucket/dataset"
    planned = plan(cluster, "workspace", inputs={"s3://bucket/dataset": path})
    assert planned.inputs == {"s3://bucket/dataset": path}
    assert "--download" not in planned.wrapper
    assert plan(cluster, "artifacts", inputs={"s3://bucket/dataset": path}).inputs != planned.inputs


@pytest.mark.parametrize(
    ("given", "mounts", "directory", "synced"),
    [
        ("s3://bucket/resnet/", (), "/kfp-mindspore/checkpoints", "s3://bucket/resnet"),
        ("/mnt/data/resnet", ("/mnt/data",), "/mnt/data/resnet", ""),
        ("/mnt/database", ("/mnt/data",), None, ""),
        ("/kfp-mindspore/x", (), None, ""),
    ],
)
def test_checkpoints_of_several_runs(
    given: str, mounts: tuple[str, ...], directory: str | None, synced: str, cluster: Cluster
) -> None:
    patch = PodPatch(volume_mounts=[{"name": "v", "mountPath": mount} for mount in mounts])
    if directory is None:
        with pytest.raises(ValidationError, match="checkpoint_dir: must be a URI or a directory of a volume"):
            plan(cluster, "", checkpoint_dir=given, patch=patch)
        return
    planned = plan(cluster, "", checkpoint_dir=given, patch=patch)
    assert planned.checkpoint_dir == directory
    assert ("--keep-checkpoints" in planned.wrapper) == bool(synced)
    assert not synced or synced in planned.wrapper


@pytest.mark.parametrize("uri", ["/data/model", "pvc://claim/model", "mem://x/model"])
def test_outputs_that_pods_cannot_write_are_refused(uri: str, cluster: Cluster) -> None:
    with pytest.raises(UserError, match="the pods of a job cannot read this URI"):
        plan(cluster, "", outputs={"model/": uri}, root="s3://bucket/artifacts")


@pytest.mark.parametrize(
    ("file", "uris", "root"),
    [
        ("/s3/b/artifacts/task/uuid/output_metadata.json", (), "s3://b/artifacts/task/uuid"),
        ("/minio/b/artifacts/task/uuid/output_metadata.json", (), "minio://b/artifacts/task/uuid"),
        ("/gcs/b/artifacts/task/uuid/output_metadata.json", (), "gs://b/artifacts/task/uuid"),
        ("/tmp/kfp_outputs/output_metadata.json", ("s3://b/artifacts/task/uuid/model",), "s3://b/artifacts/task/uuid"),
        ("/tmp/kfp_outputs/output_metadata.json", (), None),
    ],
)
def test_output_root(file: str, uris: tuple[str, ...], root: str | None) -> None:
    if root is None:
        with pytest.raises(UserError, match="no URI to which the job's pods can write"):
            get_root_uri(file, uris)
    else:
        assert get_root_uri(file, uris) == root


def test_image_without_package_is_explained(cluster: Cluster) -> None:
    line = "/usr/bin/python: Error while finding module specification (No module named 'kfp_mindspore')"
    planned = plan(cluster, "")
    lacks = r"The image of the job lacks kfp-mindspore\[artifacts\]"
    with pytest.raises(ProcessFailedError, match=lacks), planned.explain_failures():
        raise ProcessFailedError("job x failed", log=[line])
    with pytest.raises(ProcessFailedError, match=r"^job x failed$"), planned.explain_failures():
        raise ProcessFailedError("job x failed")
