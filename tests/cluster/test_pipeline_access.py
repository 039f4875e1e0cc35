"""`pipeline setup` and `pipeline check` with the RBAC of a real API server."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.cli.main import run
from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import CONFIG_MAPS, DEFINITIONS, NAMESPACES, PODS, SECRETS, Resource
from kfp_mindspore.msjob.api.crd import build_crd
from kfp_mindspore.runs.cluster.access import (
    Permission,
    ServiceAccount,
    list_default_capabilities,
    list_missing_permissions,
    list_permissions,
)
from tests.cluster.infrastructure.api_server import ControlPlane
from tests.support.kube.operators import wait_for
from tests.support.remote.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, start_object_store

IMAGE = "registry.example.com/mine@sha256:" + "0" * 64
GRANTED = list_default_capabilities(has_builds=True)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
RUNTIMES = Resource("serving.kserve.io", "v1alpha1", "servingruntimes", "ServingRuntime")

Check = Callable[..., tuple[int, list[dict[str, str]]]]


def wait_until(is_met: Callable[[], bool]) -> None:
    # Authorizers and controllers follow changes by watches.
    wait_for(is_met, lambda: "the API server does not follow the change")


@pytest.fixture
def cluster(api_server: ControlPlane) -> Cluster:
    return Cluster(api_server.kubeconfig)


@pytest.fixture
def account(cluster: Cluster, api_namespace: str) -> ServiceAccount:
    """Return a service account without any rights."""
    cluster.create(ACCOUNTS, {"metadata": {"name": "runner"}}, api_namespace)
    return ServiceAccount("runner", api_namespace)


@pytest.fixture
def setup(api_server: ControlPlane, account: ServiceAccount) -> Callable[..., None]:
    """Return a function that runs `pipeline setup --apply` with further arguments."""

    def apply(*arguments: str) -> None:
        place = ["-n", account.namespace, "--service-account", account.name]
        command = ["pipeline", "setup", *place, "--kubeconfig", str(api_server.kubeconfig), "--apply", *arguments]
        assert run(command) == 0

    return apply


@pytest.fixture
def check(api_server: ControlPlane, account: ServiceAccount, capsys: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs `pipeline check --json` and returns its exit code and results."""

    def run_check(*arguments: str, kubeconfig: Path = api_server.kubeconfig) -> tuple[int, list[dict[str, str]]]:
        capsys.readouterr()
        place = ["-n", account.namespace, "--service-account", account.name, "--kubeconfig", str(kubeconfig)]
        code = run(["pipeline", "check", *place, "--json", *arguments])
        return code, json.loads(capsys.readouterr().out)["checks"]

    return run_check


def _get_messages(results: list[dict[str, str]], name: str, status: str) -> list[str]:
    return [result["message"] for result in results if (result["name"], result["status"]) == (name, status)]


def _wait_granted(cluster: Cluster, account: ServiceAccount, namespace: str = "") -> None:
    place = namespace or account.namespace
    wait_until(
        lambda: not any(list_missing_permissions(cluster, account, list_permissions(name), place) for name in GRANTED)
    )


def test_network_policy_is_applied(setup: Callable[..., None], cluster: Cluster, account: ServiceAccount) -> None:
    setup("--network-policy")
    policies = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
    spec = cluster.get(policies, "kfp-mindspore-jobs", account.namespace)["spec"]
    assert (spec["policyTypes"], list(spec["ingress"][0])) == (["Ingress"], ["from"])


def test_setup_grants_what_check_requires(setup: Any, check: Check, cluster: Cluster, account: ServiceAccount) -> None:
    builds = ("--build-namespace", account.namespace)
    missing = _get_messages(check(*builds)[1], "access", "failed")
    assert len(missing) == len(GRANTED)
    assert any("create" in text and "msjobs.mindspore.gitee.com" in text for text in missing)
    setup(*builds)
    _wait_granted(cluster, account)
    granted = _get_messages(check(*builds)[1], "access", "passed")
    assert len(granted) == len(GRANTED)
    assert len(_get_messages(check()[1], "access", "passed")) == len(GRANTED) - 1
    setup(*builds)


@pytest.mark.parametrize(
    ("role", "permission"),
    [
        ("training", Permission("mindspore.gitee.com", "msjobs", ("patch",))),
        ("training", Permission("", "pods", ("delete",))),
        ("deployment", Permission("serving.kserve.io", "inferencegraphs", ("create", "delete"))),
        ("deployment", Permission("apps", "deployments", ("get",))),
        ("images", Permission("batch", "jobs", ("create",))),
        ("run", Permission("", "secrets", ("get",), ("mlpipeline-minio-artifact",))),
    ],
)
def test_check_names_removed_right(
    setup: Any, check: Check, cluster: Cluster, account: ServiceAccount, role: str, permission: Permission
) -> None:
    builds = ("--build-namespace", account.namespace)
    setup(*builds)
    _wait_granted(cluster, account)
    document = cluster.get(ROLES, f"kfp-mindspore-{role}", account.namespace)
    for rule in document["rules"]:
        if (rule["apiGroups"], rule["resources"]) == ([permission.group], [permission.resource]):
            rule["verbs"] = [verb for verb in rule["verbs"] if verb not in permission.verbs]
    rules = [rule for rule in document["rules"] if rule["verbs"]]
    cluster.patch(ROLES, f"kfp-mindspore-{role}", account.namespace, {"rules": rules})
    wait_until(lambda: list_missing_permissions(cluster, account, [permission], account.namespace) == [permission])
    code, results = check(*builds)
    assert code == 1
    names = "".join(f" {name}" for name in permission.names)
    rights = f"{', '.join(permission.verbs)} {permission.full_name}{names}"
    assert _get_messages(results, "access", "failed") == [
        f"{role}: runner of {account.namespace} lacks in namespace {account.namespace}: {rights}"
    ]


def test_rights_in_other_namespaces(
    api_server: ControlPlane, setup: Any, check: Check, cluster: Cluster, account: ServiceAccount
) -> None:
    _add_store(cluster, account.namespace)
    with api_server.make_namespace("jobs") as jobs:
        setup("--build-namespace", account.namespace)
        _wait_granted(cluster, account)
        (message,) = _get_messages(check("--job-namespace", jobs)[1], "access", "failed")
        assert message.startswith(f"training: runner of {account.namespace} lacks in namespace {jobs}: ")
        setup("--job-namespace", jobs, "--for", "training")
        wait_until(lambda: not list_missing_permissions(cluster, account, list_permissions("training"), jobs))
        assert cluster.get(SECRETS, "mlpipeline-minio-artifact", jobs)["data"]
        assert not _get_messages(check("--job-namespace", jobs)[1], "access", "failed")
        assert list_missing_permissions(cluster, account, list_permissions("deployment"), jobs)


def test_other_secrets_are_granted_by_name(setup: Any, cluster: Cluster, account: ServiceAccount) -> None:
    setup("--secret", "store")
    wanted = [Permission("", "secrets", ("get",), ("store", "mlpipeline-minio-artifact"))]
    wait_until(lambda: not list_missing_permissions(cluster, account, wanted, account.namespace))
    other = [Permission("", "secrets", ("get",), ("other",)), Permission("", "secrets", ("list",))]
    assert list_missing_permissions(cluster, account, other, account.namespace) == other


def test_setup_makes_service_account_of_services(
    setup: Any, cluster: Cluster, account: ServiceAccount, capsys: Any
) -> None:
    _add_store(cluster, account.namespace)
    setup("--model-account", "reader")
    printed = capsys.readouterr()
    assert "secret/reader in namespace" in printed.out
    secret = cluster.get(SECRETS, "reader", account.namespace)
    keys = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert (keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"]) == (ACCESS_KEY, SECRET_KEY)
    for value in (ACCESS_KEY, SECRET_KEY, *secret["data"].values()):
        assert value not in printed.out + printed.err
    assert secret["metadata"]["annotations"] == {
        "serving.kserve.io/s3-endpoint": "store.kubeflow:9000",
        "serving.kserve.io/s3-usehttps": "0",
        "serving.kserve.io/s3-region": "eu",
        "serving.kserve.io/s3-usevirtualbucket": "false",
    }
    # Secrets that others gave the account stay.
    cluster.patch(ACCOUNTS, "reader", account.namespace, {"secrets": [{"name": "other"}, {"name": "reader"}]})
    setup("--model-account", "reader", "--store-endpoint", "https://other:9000")
    names = [item["name"] for item in cluster.get(ACCOUNTS, "reader", account.namespace)["secrets"]]
    assert sorted(names) == ["other", "reader"]
    notes = cluster.get(SECRETS, "reader", account.namespace)["metadata"]["annotations"]
    assert (notes["serving.kserve.io/s3-endpoint"], notes["serving.kserve.io/s3-usehttps"]) == ("other:9000", "1")


def _add_store(cluster: Cluster, namespace: str) -> None:
    """Create KFP's Secret of the artifact store and let the ConfigMap kfp-launcher name both."""
    keys = {"accesskey": ACCESS_KEY, "secretkey": SECRET_KEY}
    cluster.create(SECRETS, {"metadata": {"name": "mlpipeline-minio-artifact"}, "stringData": keys}, namespace)
    reference = {"secretName": "mlpipeline-minio-artifact", "accessKeyKey": "accesskey", "secretKeyKey": "secretkey"}
    store = {"endpoint": "store.kubeflow:9000", "region": "eu", "disableSSL": True}
    providers = {"s3": {"default": {**store, "credentials": {"secretRef": reference}}}}
    data = {"defaultPipelineRoot": "s3://bucket/runs", "providers": yaml.safe_dump(providers)}
    cluster.create(CONFIG_MAPS, {"metadata": {"name": "kfp-launcher"}, "data": data}, namespace)


def test_account_reviews_its_own_rights(
    api_server: ControlPlane, setup: Any, check: Check, cluster: Cluster, account: ServiceAccount, tmp_path: Path
) -> None:
    setup("--for", "training")
    wait_until(lambda: not list_missing_permissions(cluster, account, list_permissions("training"), account.namespace))
    token = cluster.create(
        ACCOUNTS, {"metadata": {"name": account.name}, "spec": {}}, account.namespace, subresource="token"
    )
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    own = tmp_path / "kubeconfig"
    own.write_text(yaml.safe_dump(config))
    _, results = check(kubeconfig=own)
    assert len(_get_messages(results, "access", "failed")) == len(GRANTED) - 2
    assert _get_messages(results, "access", "passed") == [
        f"training: runner has all rights in namespace {account.namespace}"
    ]


def test_results_without_rights_are_unknown(api_server: ControlPlane, check: Check) -> None:
    _, results = check(kubeconfig=api_server.write_kubeconfig("nobody@test"))
    assert {result["status"] for result in results if result["name"] in ("account", "access", "operator")} == {
        "unknown"
    }
    assert any("admin of the namespace" in result["hint"] for result in results)


def test_missing_account_is_reported(api_server: ControlPlane, api_namespace: str, capsys: Any) -> None:
    command = ["pipeline", "check", "-n", api_namespace, "--kubeconfig", str(api_server.kubeconfig)]
    assert run(command) == 1
    assert f"namespace {api_namespace} has no service account pipeline-runner" in capsys.readouterr().out


@pytest.fixture
def lifecycle_cluster(cluster: Cluster, account: ServiceAccount) -> Iterator[dict[str, Any]]:
    """Install the definitions, an operator without pods, a runtime and a pipeline root; yield the created objects."""
    definitions = [build_crd()]
    for version, kind, namespaced in (
        ("v1beta1", "InferenceService", True),
        ("v1alpha1", "InferenceGraph", True),
        ("v1alpha1", "ServingRuntime", True),
        ("v1alpha1", "ClusterServingRuntime", False),
    ):
        definitions.append(_make_definition("serving.kserve.io", version, kind, namespaced))
    for definition in definitions:
        cluster.apply(definition)
    for definition in definitions:
        wait_until(lambda name=definition["metadata"]["name"]: _is_established(cluster, name))
    labels = {"app.kubernetes.io/name": "msjob-controller"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "operator", "image": "x", "args": []}]},
    }
    operator = {
        "metadata": {"name": "msjob-controller", "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    place = f"system-{secrets.token_hex(3)}"
    cluster.create(NAMESPACES, {"metadata": {"name": place}})
    cluster.create(DEPLOYMENTS, operator, place)
    format_ = {"name": "mindspore", "version": "2", "autoSelect": True}
    runtime = {"metadata": {"name": "mine"}, "spec": {"supportedModelFormats": [format_], "containers": []}}
    cluster.create(
        RUNTIMES, {"apiVersion": RUNTIMES.api_version, "kind": "ServingRuntime", **runtime}, account.namespace
    )
    _add_store(cluster, account.namespace)
    yield {"operator": place}
    cluster.delete(NAMESPACES, place)
    for definition in definitions:
        with contextlib.suppress(NotFoundError):
            cluster.delete(DEFINITIONS, definition["metadata"]["name"])


def test_check_of_lifecycle(
    setup: Any, check: Check, cluster: Cluster, account: ServiceAccount, lifecycle_cluster: dict[str, Any]
) -> None:
    setup("--model-account", "reader", "--build-namespace", account.namespace)
    _wait_granted(cluster, account)
    place = lifecycle_cluster["operator"]
    source = ("digits_lifecycle", "--image", IMAGE)
    _, results = check(*source)
    assert _get_messages(results, "model store", "unknown") == [
        f"service account default in namespace {account.namespace} has no Secret with S3 credentials for KServe"
    ]
    _, results = check(*source, "--model-account", "gone")
    assert _get_messages(results, "model store", "failed")
    source = (*source, "--model-account", "reader")
    (message,) = _get_messages(results, "operator", "failed")
    assert message == f"the Deployment msjob-controller in namespace {place} has no available pod"
    _make_pods_ready(cluster, place)
    code, results = check(*source)
    # No registry has the image.
    assert (code, [result["name"] for result in results if result["status"] != "passed"]) == (0, ["extras"])
    names = [result["name"] for result in results]
    assert set(names) == {
        *(
            "images",
            "extras",
            "storage",
            "account",
            "definition",
            "access",
            "operator",
            "runtime",
            "model store",
            "pipeline root",
        ),
    }

    faults: list[tuple[str, Callable[[], Any], str]] = [
        (
            "runtime",
            lambda: cluster.patch(RUNTIMES, "mine", account.namespace, {"spec": {"disabled": True}}),
            f"no serving runtime selects the model format mindspore in namespace {account.namespace}",
        ),
        (
            "pipeline root",
            lambda: cluster.patch(
                CONFIG_MAPS, "kfp-launcher", account.namespace, {"data": {"defaultPipelineRoot": "oss://a/b"}}
            ),
            f"oss://a/b (that of the ConfigMap kfp-launcher in namespace {account.namespace}) cannot be read by "
            "KServe, which needs s3:// or gs://",
        ),
        (
            "operator",
            lambda: _watch_only(cluster, place, "other"),
            f"the operator does not watch namespace {account.namespace}",
        ),
        (
            "definition",
            lambda: cluster.delete(DEFINITIONS, "inferencegraphs.serving.kserve.io"),
            "the cluster does not know InferenceGraph of serving.kserve.io/v1alpha1",
        ),
    ]
    for name, break_, expected in faults:
        break_()
        wait_until(lambda name=name, expected=expected: _get_messages(check(*source)[1], name, "failed") == [expected])
    assert check("digits_lifecycle")[0] == 1


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("elsewhere", "train-msjob: storage: must be artifacts, workspace or claim:NAME/PATH, got 'elsewhere'"),
        ("workspace", "train-msjob: storage: workspace: needs dsl.PipelineConfig(workspace=…) on the pipeline"),
        ("claim:data/runs", ""),
    ],
)
def test_storage_of_jobs_is_checked(check: Check, tmp_path: Path, storage: str, message: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from kfp import dsl\n"
        "from kfp_mindspore.components import train_msjob\n\n"
        "@dsl.pipeline(name='own')\n"
        "def own():\n"
        f"    train_msjob(command=['true'], storage='{storage}')\n"
    )
    _, results = check(str(file), "--image", IMAGE)
    assert _get_messages(results, "storage", "failed") == [message] * bool(message)


@pytest.mark.parametrize(
    ("parameter", "step"),
    [("service_account: str = ''", "run with -p service_account=…"), ("", "set service_account of deploy_kserve")],
)
def test_recommended_account_is_parameter_of_pipeline(check: Check, tmp_path: Path, parameter: str, step: str) -> None:
    file, given = tmp_path / "own.py", ", service_account=service_account" * bool(parameter)
    file.write_text(
        "from kfp import dsl\n"
        "from kfp_mindspore.components import deploy_kserve\n\n"
        "@dsl.pipeline(name='own')\n"
        f"def own({parameter}):\n"
        "    bundle = dsl.importer(artifact_uri='s3://b/m', artifact_class=dsl.Model)\n"
        f"    deploy_kserve(bundle=bundle.output, service_name='a'{given})\n"
    )
    _, results = check(str(file), "--image", IMAGE)
    (hint,) = [result["hint"] for result in results if result["name"] == "model store"]
    assert f"--apply, then {step} and check with --model-account." in hint


def test_data_of_run_is_tried_with_credentials_of_its_steps(
    check: Check, cluster: Cluster, account: ServiceAccount
) -> None:
    source = ("scheduled_retraining", "--image", IMAGE)
    with start_object_store() as store:
        store.refuse_strangers()
        store.put("data/train.npz", b"")
        uri = f"s3://{BUCKET}/data/"
        for resource, document in zip((CONFIG_MAPS, SECRETS), store.build_kfp_configuration(), strict=True):
            cluster.create(resource, document, account.namespace)
        assert _get_messages(check(*source, "-p", f"data={uri}")[1], "data", "passed") == [f"{uri} can be read"]
        absent = f"s3://{BUCKET}/absent/"
        assert _get_messages(check(*source, "-p", f"data={absent}")[1], "data", "failed") == [
            f"{absent}: nothing there"
        ]
        secret = {"stringData": {"secretkey": "another"}}
        cluster.patch(SECRETS, "mlpipeline-minio-artifact", account.namespace, secret)
        (refused,) = _get_messages(check(*source, "-p", f"data={uri}")[1], "data", "failed")
        assert refused.startswith(f"{uri} cannot be read: ")
        assert f"credentials: Secret {account.namespace}/mlpipeline-minio-artifact" in refused
    (unreachable,) = _get_messages(check(*source, "-p", f"data={uri}")[1], "data", "unknown")
    assert unreachable.startswith(f"{uri} cannot be read: ")
    assert not [result for result in check("digits_lifecycle", "--image", IMAGE)[1] if result["name"] == "data"]


def _make_definition(group: str, version: str, kind: str, namespaced: bool) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def _is_established(cluster: Cluster, name: str) -> bool:
    conditions = (cluster.get(DEFINITIONS, name).get("status") or {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _make_pods_ready(cluster: Cluster, namespace: str, generation: int = 1) -> None:
    """Report the operator's pods as running, as the kubelet of a node would."""

    def is_available() -> bool:
        for pod in cluster.list(PODS, namespace):
            conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
            status = {"phase": "Running", "conditions": conditions}
            cluster.patch(PODS, pod["metadata"]["name"], namespace, {"status": status}, subresource="status")
        status = cluster.get(DEPLOYMENTS, "msjob-controller", namespace).get("status") or {}
        return (status.get("observedGeneration"), status.get("availableReplicas")) == (generation, 1)

    wait_until(is_available)


def _watch_only(cluster: Cluster, namespace: str, watched: str) -> None:
    document = cluster.get(DEPLOYMENTS, "msjob-controller", namespace)
    document["spec"]["template"]["spec"]["containers"][0]["args"] = [f"--namespace={watched}"]
    cluster.patch(DEPLOYMENTS, "msjob-controller", namespace, {"spec": document["spec"]})
    _make_pods_ready(cluster, namespace, generation=2)
