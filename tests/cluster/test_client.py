"""MSJobClient and `kfp-mindspore job` against a real API server: its responses, and faults of the connection."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kfp_mindspore.cli import main
from kfp_mindspore.errors import AlreadyExistsError, NotFoundError, ValidationError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import ForbiddenError, NotInstalledError, UnauthorizedError
from kfp_mindspore.kube.resources import PODS, Resource
from kfp_mindspore.msjob import KubernetesBackend, MSJob, MSJobClient, build_msjob
from kfp_mindspore.msjob.api.names import MSJOBS
from tests.cluster.infrastructure.api_server import Api, ApiServer, ControlPlane
from tests.support.kube.msjob_cases import build_job, put
from tests.support.kube.operators import install_definition

SECONDS = 300.0
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")


@pytest.fixture
def client(api_server: Api, api_namespace: str) -> MSJobClient:
    install_definition(api_server.kubeconfig)
    return MSJobClient(KubernetesBackend(api_namespace, kubeconfig=api_server.kubeconfig))


@pytest.fixture
def cluster(client: MSJobClient) -> Cluster:
    assert isinstance(client.backend, KubernetesBackend)
    return client.backend.cluster


def build(name: str = "digits", workers: int = 1) -> MSJob:
    return build_msjob(name, command=["python", "train.py"], image="example.com/train:1", workers=workers)


def submit(client: MSJobClient, name: str = "digits", workers: int = 1) -> MSJob:
    client.create_job(build(name, workers), namespace=client.namespace)
    return client.get_job(name)


def set_state(cluster: Cluster, namespace: str, name: str, state: str, **more: Any) -> None:
    """Write a status, as an operator does."""
    condition = {"type": state, "status": "True", "reason": "Because", "message": f"It is {state}."}
    status = {"status": {"state": state, "conditions": [condition], **more}}
    cluster.patch(MSJOBS, name, namespace, status, subresource="status")


def put_pod(cluster: Cluster, job: MSJob, index: int, *, holds: bool = True) -> str:
    """Make a worker's pod, as an operator does; no node will run it."""
    owner = {"apiVersion": job.api_version, "kind": job.kind, "name": job.name, "uid": job.metadata["uid"]}
    name = f"{job.name}-worker-{index}"
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                "training.kubeflow.org/job-name": job.name,
                "training.kubeflow.org/replica-type": "worker",
                "training.kubeflow.org/replica-index": str(index),
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": holds}],
            "finalizers": ["example.com/held"],
        },
        "spec": {"containers": [{"name": "mindspore", "image": "example.com/train:1"}]},
    }
    cluster.create(PODS, document, job.namespace)
    return name


@contextlib.contextmanager
def running(*steps: Callable[[], object]) -> Iterator[None]:
    """Run steps in another thread during the block; their exception is raised at its end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(SECONDS)
    for error in errors:
        raise error


def test_job_crud(client: MSJobClient, cluster: Cluster) -> None:
    client.create_job(build(), namespace=client.namespace, dry_run=True)
    assert client.list_jobs() == []
    made = submit(client)
    # As the server completes it.
    assert made.run_policy is not None
    assert (made.run_policy.suspend, made.success_policy, made.status) == (False, "", None)
    submit(client, "another")
    assert [job.name for job in client.list_jobs()] == ["another", "digits"]
    with pytest.raises(AlreadyExistsError, match="job digits exists already"):
        submit(client)
    client.update_job({"spec": {"runPolicy": {"suspend": True}}, "metadata": {"labels": {"a": "b"}}}, "digits")
    changed = client.get_job("digits")
    assert changed.run_policy is not None
    assert (changed.run_policy.suspend, changed.metadata["labels"]) == (True, {"a": "b"})
    # A job that was read is sent back whole; what the server owns does not stand in its way.
    set_state(cluster, client.namespace, "digits", "Suspended")
    changed.run_policy.backoff_limit = 9
    client.update_job(changed, "digits")
    assert client.get_job("digits").effective_run_policy.backoff_limit == 9
    client.update_job({"spec": {"runPolicy": {"suspend": False}}}, "digits")
    with pytest.raises(ValidationError, match="template cannot change"):
        client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"template": {"spec": {"nodeName": "x"}}}}}}, "digits")
    client.delete_job("digits")
    with pytest.raises(NotFoundError, match="job digits does not exist in namespace"):
        client.get_job("digits")


def test_concurrent_updates_are_all_kept(client: MSJobClient) -> None:
    submit(client)
    count = 12

    def label(number: int) -> Callable[[], None]:
        return lambda: client.update_job({"metadata": {"labels": {f"n{number}": "x"}}}, "digits")

    with contextlib.ExitStack() as stack:
        for number in range(count):
            stack.enter_context(running(label(number)))
    assert len(client.get_job("digits").metadata["labels"]) == count


def test_replica_keys_are_kept(client: MSJobClient, cluster: Cluster) -> None:
    document = build_job("digits", worker={"replicas": 2, "template": build().ms_replica_specs["Worker"].template})
    cluster.create(MSJOBS, document, client.namespace)
    client.update_job({"spec": {"msReplicaSpecs": {"Worker": {"replicas": 3}}}}, "digits")
    stored = cluster.get(MSJOBS, "digits", client.namespace)
    assert {key: spec["replicas"] for key, spec in stored["spec"]["msReplicaSpecs"].items()} == {"worker": 3}


def test_unknown_fields_are_refused_by_server(client: MSJobClient) -> None:
    document = put(build().to_dict(), "spec.msReplicaSpecs.Worker.template.spec.zyx", 1)
    with pytest.raises(ValidationError, match=r'unknown field "spec.msReplicaSpecs.Worker.template.spec.zyx"'):
        client.create_job(document, namespace=client.namespace)


def test_wait_survives_api_server_restarts(start_api_server: Callable[..., ApiServer]) -> None:
    server = start_api_server()
    install_definition(server.kubeconfig)
    client = MSJobClient(KubernetesBackend("default", kubeconfig=server.kubeconfig))
    cluster = Cluster(server.kubeconfig)
    submit(client)
    seen: list[str] = []

    def see(job: MSJob) -> None:
        seen.append(job.status.state if job.status is not None else "Pending")

    def is_seen(state: str) -> Callable[[], None]:
        def wait() -> None:
            deadline = time.monotonic() + SECONDS
            while state not in seen:
                assert time.monotonic() < deadline, seen
                time.sleep(0.01)

        return wait

    def pause_etcd() -> None:
        with server.pause_etcd():
            time.sleep(3)

    with running(
        is_seen("Pending"),
        server.restart_api_server,
        lambda: set_state(cluster, "default", "digits", "Running"),
        is_seen("Running"),
        pause_etcd,
        server.restart_api_server,
        lambda: set_state(cluster, "default", "digits", "Succeeded"),
    ):
        client.wait_for_job_conditions("digits", wait_timeout=SECONDS, callback=see)
    assert seen[-1] == "Succeeded"


def test_deletion_waits_for_last_pod(client: MSJobClient, cluster: Cluster) -> None:
    job = submit(client, workers=2)
    names = [put_pod(cluster, job, 0), put_pod(cluster, job, 1, holds=False)]
    assert client.get_job_pod_names("digits") == names
    let_go: list[str] = []

    def release() -> None:
        for name in names:
            for pods in cluster.watch(PODS, client.namespace, timeout=SECONDS):
                if name in pods and pods[name]["metadata"].get("deletionTimestamp"):
                    break
            let_go.append(name)
            cluster.patch(PODS, name, client.namespace, {"metadata": {"finalizers": None}})

    with running(release):
        client.delete_job("digits")
        assert let_go == names
    assert cluster.list(PODS, client.namespace) == []


def test_missing_objects_and_rejected_credentials(start_api_server: Callable[..., ApiServer], tmp_path: Path) -> None:
    server = start_api_server()
    client = MSJobClient(KubernetesBackend("default", kubeconfig=server.kubeconfig))
    for call in (client.list_jobs, lambda: client.get_job("a"), lambda: submit(client)):
        with pytest.raises(
            NotInstalledError,
            match=r"does not know msjobs.*\nInstall .* with: kfp-mindspore operator install --image REGISTRY/NAME@",
        ):
            call()
    install_definition(server.kubeconfig)
    with pytest.raises(NotFoundError, match="there is no such namespace\nChoose another with --namespace"):
        client.create_job(build(), namespace="nowhere")
    # An unknown token.
    kubeconfig = tmp_path / "kubeconfig"
    text = json.loads(_as_json(server.kubeconfig))
    text["users"][0]["user"] = {"token": "nobody"}
    kubeconfig.write_text(json.dumps(text))
    with pytest.raises(UnauthorizedError, match="rejected these credentials"):
        MSJobClient(KubernetesBackend(kubeconfig=kubeconfig)).list_jobs()


def _as_json(kubeconfig: Path) -> str:
    import yaml

    return json.dumps(yaml.safe_load(kubeconfig.read_text()))


def test_forbidden_requests_name_verb_and_namespace(api_server: Api, client: MSJobClient, cluster: Cluster) -> None:
    if not isinstance(api_server, ControlPlane):
        pytest.skip("users are made by the authority of a control plane of our own: unset KFP_MINDSPORE_TEST_CLUSTER")
    namespace = client.namespace
    tenant = MSJobClient(KubernetesBackend(namespace, kubeconfig=api_server.write_kubeconfig("tenant")))
    submit(client)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: tenant.create_job(build("second"), namespace=namespace),
        "list": tenant.list_jobs,
        "get": lambda: tenant.get_job("digits"),
        "patch": lambda: tenant.update_job({"metadata": {"labels": {"a": "b"}}}, "digits"),
    }
    for verb, call in calls.items():
        with pytest.raises(ForbiddenError) as refused:
            call()
        assert f"not allowed to {verb} msjobs.mindspore.gitee.com" in str(refused.value)
        assert f"kubectl auth can-i {verb} msjobs.mindspore.gitee.com -n {namespace}" in refused.value.hint
    # Rights on jobs only: pods need rights of their own.
    rules = [
        {"apiGroups": ["mindspore.gitee.com"], "resources": ["msjobs"], "verbs": ["get", "list", "watch", "delete"]}
    ]
    cluster.create(ROLES, {"metadata": {"name": "jobs"}, "rules": rules}, namespace)
    subject = {"kind": "User", "name": "tenant", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "Role", "name": "jobs", "apiGroup": "rbac.authorization.k8s.io"}
    cluster.create(BINDINGS, {"metadata": {"name": "jobs"}, "subjects": [subject], "roleRef": role}, namespace)
    wait_allowed(lambda: tenant.get_job("digits"))
    with pytest.raises(ForbiddenError, match=f"not allowed to list pods in namespace {namespace}"):
        tenant.get_job_pods("digits")
    with pytest.raises(ForbiddenError, match="not allowed to patch"):
        calls["patch"]()


def wait_allowed(call: Callable[[], object]) -> None:
    """Call until it is allowed; the API server applies a new role after a moment."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            call()
        except ForbiddenError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


class Result(NamedTuple):
    code: int
    output: str
    errors: str


Run = Callable[..., Result]


@pytest.fixture
def run(
    api_server: Api,
    client: MSJobClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run `kfp-mindspore job …` on the API server, in the test's namespace."""
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig))
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Result:
        capsys.readouterr()
        code = main.run(["job", words[0], "--namespace", client.namespace, *words[1:]])
        return Result(code, *capsys.readouterr())

    return call


def test_job_commands(run: Run, client: MSJobClient, cluster: Cluster, tmp_path: Path) -> None:
    namespace = client.namespace
    (tmp_path / "job.yaml").write_text(build().to_yaml().replace("  namespace: default\n", ""))
    judged = run("submit", "job.yaml", "--dry-run", "--json")
    assert (judged.code, json.loads(judged.output)["spec"]["runPolicy"]["suspend"]) == (0, False)
    mounted = run(
        *(
            "submit",
            "--name",
            "a",
            "--image",
            "b",
            "--claim",
            "digits=/data",
            "--dataset",
            "/data/x",
            "--dry-run",
            "--json",
        ),
        *("--", "python", "train.py"),
    )
    pod = json.loads(mounted.output)["spec"]["msReplicaSpecs"]["Worker"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "claim-0", "persistentVolumeClaim": {"claimName": "digits"}}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "claim-0", "mountPath": "/data"}]
    assert pod["containers"][0]["env"] == [{"name": "KFP_MINDSPORE_DATASET_DIR", "value": "/data/x"}]
    submitted = run("submit", "job.yaml")
    follow = f"kfp-mindspore job logs -f digits --namespace {namespace}"
    assert submitted == Result(0, f"job digits submitted; follow it with: {follow}\n", "")
    assert run("submit", "job.yaml").code == 2
    assert run("suspend", "digits").output == "job digits is being suspended\n"
    assert run("scale", "digits", "--workers", "3").output == "job digits is being scaled to 3 workers\n"
    assert run("resume", "digits").output == "job digits is being resumed\n"
    job = client.get_job("digits")
    assert (job.workers, job.effective_run_policy.suspend) == (3, False)
    put_pod(cluster, job, 0)
    failure = {"pod": "digits-worker-1", "exitCode": 137, "reason": "OOMKilled", "log": ["last words"], "attempt": 1}
    set_state(cluster, namespace, "digits", "Running", workers="2/3", restarts=1, failure=failure, waiting="It waits.")
    shown = run("get", "digits")
    assert (shown.code, shown.errors) == (0, "")
    for words in (
        "digits: Running\n",
        "restarts: 1 of 3\n",
        "waits: It waits.\n",
        "failed first: digits-worker-1 with exit code 137 (OOMKilled) in attempt 1\n  | last words\n",
        "digits-worker-0  Pending",
    ):
        assert words in shown.output
    (row,) = run("list").output.splitlines()[1:]
    assert row.split()[:4] == ["digits", "Running", "2/3", "1"]
    assert run("wait", "digits", "--for", "running", "--timeout", "60").output == "job digits: Running\n"
    late = run("wait", "digits", "--timeout", "1")
    assert late == Result(
        1, "", "waits: It waits.\nError: job digits is Running, not Succeeded, after 1 s; it waits: It waits.\n"
    )
    set_state(cluster, namespace, "digits", "Failed")
    assert "Error: job digits failed: It is Failed.\n  | last words" in run("wait", "digits").errors
    cluster.patch(PODS, "digits-worker-0", namespace, {"metadata": {"finalizers": None}})
    assert run("delete", "digits").output == "job digits deleted\n"
    assert json.loads(run("list", "--json").output) == {"items": []}
    gone = run("get", "digits")
    assert (gone.code, "job digits does not exist" in gone.errors, "Traceback" in gone.errors) == (2, True, False)


def test_job_without_operator_is_reported(run: Run, client: MSJobClient) -> None:
    submit(client)
    waited = run("wait", "digits", "--timeout", "15")
    assert "Warning: no operator has reconciled job digits for" in waited.errors
    assert "Install one with: kfp-mindspore operator install --image REGISTRY/NAME@sha256:…" in waited.errors
    assert "Warning: no operator" in run("get", "digits").errors


def test_namespace_of_manifest(run: Run, client: MSJobClient, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(build().to_yaml())
    refused = run("submit", "job.yaml")
    assert refused.code == 2
    assert f"metadata.namespace is 'default' in the file, but --namespace is '{client.namespace}'" in refused.errors
