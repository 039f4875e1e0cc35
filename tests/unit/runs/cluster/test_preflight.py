"""`pipeline setup` and `pipeline check` against a fake API server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.cli.main import run
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.msjob.api.kueue import LOCAL_QUEUES
from kfp_mindspore.runs.compiled.sources import compile_text
from tests.support.kube.fake_api_server import FakeApiServer, respond_once, send_json
from tests.support.kube.queues import put_queue
from tests.support.remote import base_images, registries

SECRET = "mlpipeline-minio-artifact"
REFERENCE = {"secretName": SECRET, "accessKeyKey": "accesskey", "secretKeyKey": "secretkey"}
RBAC = [
    {"name": "roles", "kind": "Role", "namespaced": True},
    {"name": "rolebindings", "kind": "RoleBinding", "namespaced": True},
]
Setup = Callable[..., Any]
Check = Callable[..., list[dict[str, str]]]


def _allow_reviews(request: Any, handler: Any) -> bool:
    if not request.path.endswith("subjectaccessreviews"):
        return False
    send_json(handler, 201, {"kind": "LocalSubjectAccessReview", "status": {"allowed": True}})
    return True


@pytest.fixture
def cluster(api: FakeApiServer) -> FakeApiServer:
    """Return a cluster with KFP in the namespace `runs`, whose accounts may do everything."""
    api.kinds["/api/v1"] = [{"name": "secrets", "kind": "Secret", "namespaced": True}]
    api.kinds["/apis/rbac.authorization.k8s.io/v1"] = RBAC
    api.faults.append(_allow_reviews)
    api.put(
        "/api/v1/namespaces/runs/serviceaccounts",
        {"kind": "ServiceAccount", "metadata": {"name": "pipeline-runner", "namespace": "runs"}},
    )
    providers = {"s3": {"default": {"endpoint": "store:9000", "credentials": {"secretRef": REFERENCE}}}}
    data = {"defaultPipelineRoot": "s3://bucket/runs", "providers": yaml.safe_dump(providers)}
    api.put("/api/v1/namespaces/runs/configmaps", {"metadata": {"name": "kfp-launcher"}, "data": data})
    return api


@pytest.fixture
def kubeconfig(api: FakeApiServer, tmp_path: Path) -> str:
    return str(api.write_kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def check(cluster: FakeApiServer, kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs `pipeline check --json` and returns the results with a name."""

    def run_check(name: str, *arguments: str) -> list[dict[str, str]]:
        capsys.readouterr()
        run(["pipeline", "check", *arguments, "-n", "runs", "--kubeconfig", kubeconfig, "--json"])
        return [item for item in json.loads(capsys.readouterr().out)["checks"] if item["name"] == name]

    return run_check


def put_secret(api: FakeApiServer, namespace: str, key: str, labels: dict[str, str] | None = None) -> None:
    data = {"accesskey": key, "secretkey": "s", "unrelated": "x"}
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    metadata = {"name": SECRET, "namespace": namespace, "labels": labels or {}}
    api.put(f"/api/v1/namespaces/{namespace}/secrets", {"kind": "Secret", "metadata": metadata, "data": encoded})


def get_key(api: FakeApiServer, namespace: str) -> str:
    found = api.find(f"/api/v1/namespaces/{namespace}/secrets", SECRET)
    return base64.b64decode(found["data"]["accesskey"]).decode() if found else ""


def test_store_secret_follows_jobs_to_their_namespace(
    cluster: FakeApiServer, kubeconfig: str, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = ["pipeline", "setup", "-n", "runs", "--job-namespace", "jobs", "--for", "training"]
    apply = [*setup, "--kubeconfig", kubeconfig, "--apply"]
    assert run(apply) == 2
    assert f"Secret runs/{SECRET} with the artifact store's credentials does not exist" in capsys.readouterr().err
    put_secret(cluster, "runs", "first")
    (missing,) = check("store secret", "--job-namespace", "jobs")
    assert missing["status"] == "failed"
    assert missing["message"] == f"Secret {SECRET} in namespace jobs does not exist: its jobs' pods refer to it"
    assert "pipeline setup -n runs --service-account pipeline-runner --job-namespace jobs" in missing["hint"]
    assert run(setup) == 0
    assert "--apply copies them to namespace jobs" in capsys.readouterr().err
    assert run(apply) == 0
    assert f"secret/{SECRET} in namespace jobs applied" in capsys.readouterr().out
    assert get_key(cluster, "jobs") == "first"
    assert [item["status"] for item in check("store secret", "--job-namespace", "jobs")] == ["passed"]
    # After a key rotation.
    put_secret(cluster, "runs", "second")
    assert "is out of date" in check("store secret", "--job-namespace", "jobs")[0]["message"]
    assert run(apply) == 0
    assert get_key(cluster, "jobs") == "second"
    assert check("store secret") == []


def test_jobs_namespace_is_read_from_run_arguments(cluster: FakeApiServer, check: Check, tmp_path: Path) -> None:
    put_secret(cluster, "runs", "first")
    compiled = tmp_path / "pipeline.yaml"
    compiled.write_text(compile_text("digits_lifecycle", "127.0.0.1:1/none@sha256:" + "0" * 64))
    (missing,) = check("store secret", str(compiled), "-p", "namespace=jobs")
    assert missing["message"].startswith(f"Secret {SECRET} in namespace jobs does not exist")
    places = {item["message"].rpartition(" ")[2] for item in check("access", str(compiled), "-p", "namespace=jobs")}
    assert places == {"runs", "jobs"}
    assert check("store secret", str(compiled)) == []


def test_queue_of_step_is_checked(cluster: FakeApiServer, check: Check, tmp_path: Path) -> None:
    compiled = tmp_path / "pipeline.yaml"
    compiled.write_text(compile_text("digits_lifecycle", "127.0.0.1:1/none@sha256:" + "0" * 64))
    arguments = [str(compiled), "-p", "namespace=jobs", "-p", "queue=research"]
    (missing,) = check("queue", *arguments)
    assert missing["status"] == "failed"
    assert missing["message"] == "queue 'research': namespace jobs has no such LocalQueue"
    put_queue(cluster, "research", "jobs")
    assert [item["status"] for item in check("queue", *arguments)] == ["passed"]
    cluster.faults.append(respond_once(403, path=LOCAL_QUEUES.plural, reason="Forbidden"))
    assert [item["status"] for item in check("queue", *arguments)] == ["unknown"]
    assert check("queue", str(compiled)) == []


def test_own_secret_of_jobs_namespace_stays(
    cluster: FakeApiServer, kubeconfig: str, check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    put_secret(cluster, "runs", "first")
    put_secret(cluster, "jobs", "own", {"app.kubernetes.io/part-of": "kubeflow-profile"})
    apply = ["pipeline", "setup", "-n", "runs", "--job-namespace", "jobs", "--kubeconfig", kubeconfig, "--apply"]
    assert run(apply) == 0
    printed = capsys.readouterr()
    assert f"secret/{SECRET} in namespace jobs is no copy of that in namespace runs and differs" in printed.err
    assert f"secret/{SECRET}" not in printed.out
    assert get_key(cluster, "jobs") == "own"
    assert [item["status"] for item in check("store secret", "--job-namespace", "jobs")] == ["unknown"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[registries.Registry]:
    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.mark.parametrize(
    ("labels", "status", "message"),
    [
        ("artifacts,data,kubernetes,lm,pipelines,train", "passed", "has kubernetes, lm, pipelines, train"),
        (
            "artifacts,data,kubernetes,pipelines,train",
            "failed",
            "lacks the extras lm (of evaluate-language-model, finetune-language-model, import-language-model)",
        ),
        (None, "unknown", "has no label org.kfp-mindspore.image.extras"),
    ],
)
def test_image_without_extras_of_steps_is_found(
    registry: registries.Registry,
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    labels: str | None,
    status: str,
    message: str,
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    config = RegistryConfig(insecure=(registry.host,))
    settings = {"Labels": {"org.kfp-mindspore.image.extras": labels}} if labels else {}
    image = base_images.push_base(registry.host, f"extras/{status}", config=config, settings=settings)
    compiled = tmp_path / "pipeline.yaml"
    compiled.write_text(compile_text("chat_lora", image))
    (found,) = check("extras", str(compiled), "--insecure", registry.host)
    assert found["status"] == status
    assert message in found["message"]
    if status == "failed":
        assert f"image runtime --to {image} --extra artifacts" in found["hint"]
        assert "--extra lm" in found["hint"]


def test_unreachable_registry_is_unknown(check: Check, tmp_path: Path) -> None:
    compiled = tmp_path / "pipeline.yaml"
    compiled.write_text(compile_text("chat_lora", "127.0.0.1:1/none@sha256:" + "0" * 64))
    (found,) = check("extras", str(compiled))
    assert found["status"] == "unknown"
    assert found["message"].startswith("steps need kubernetes, lm, pipelines, train; ")


def test_ray_needs_its_definition_and_rights(
    cluster: FakeApiServer, kubeconfig: str, check: Check, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = tmp_path / "pipeline.yaml"
    compiled.write_text(compile_text("ray_lifecycle", "127.0.0.1:1/none@sha256:" + "0" * 64))
    ray = check("definition", str(compiled))[0]
    assert (ray["status"], ray["message"]) == ("failed", "the cluster does not know RayJob of ray.io/v1")
    assert "KFP_MINDSPORE_BACKEND" in ray["hint"]
    cluster.kinds["/apis/ray.io/v1"] = [{"name": "rayjobs", "kind": "RayJob", "namespaced": True}]
    assert check("definition", str(compiled))[0]["status"] == "passed"
    cluster.faults.insert(0, _refuse_rayjobs)
    (missing,) = (item for item in check("access", str(compiled)) if item["status"] == "failed")
    assert "lacks in namespace runs: get, list, watch, create, delete rayjobs.ray.io" in missing["message"]
    assert missing["hint"].endswith("pipeline setup -n runs --service-account pipeline-runner --for ray --apply")
    assert run(["pipeline", "setup", "-n", "runs", "--for", "ray", "--json"]) == 0
    role = json.loads(capsys.readouterr().out)["items"][0]
    rule = {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["get", "list", "watch", "create", "delete"]}
    assert rule in role["rules"]


def _refuse_rayjobs(request: Any, handler: Any) -> bool:
    spec = (request.body or {}).get("spec") or {}
    if spec.get("resourceAttributes", {}).get("group") != "ray.io":
        return False
    send_json(handler, 201, {"kind": "LocalSubjectAccessReview", "status": {"allowed": False}})
    return True
