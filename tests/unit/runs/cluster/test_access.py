from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.cli.main import run
from kfp_mindspore.msjob.decisions.topology import make_labels
from kfp_mindspore.runs.cluster.access import CAPABILITIES, ServiceAccount, build_access, list_permissions
from kfp_mindspore.runs.cluster.step_needs import list_capabilities
from kfp_mindspore.runs.compiled.sources import load_spec

PROFILE = ["-n", "team-a", "--service-account", "default-editor"]


def test_each_capability_has_role_and_binding() -> None:
    documents = build_access(ServiceAccount("runner", "team-a"), dict.fromkeys(CAPABILITIES, ("team-a",)))
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert names == [
        pair
        for name in CAPABILITIES
        for pair in (("Role", f"kfp-mindspore-{name}"), ("RoleBinding", f"kfp-mindspore-{name}.team-a.runner"))
    ]


def test_rights_are_least_privilege() -> None:
    for name in CAPABILITIES:
        permissions = list_permissions(name)
        assert len({(item.group, item.resource) for item in permissions}) == len(permissions)
        for item in permissions:
            assert "*" not in (item.group, item.resource, *item.verbs)
            assert item.names or item.resource not in ("secrets", "configmaps")
            assert not item.resource.startswith(("role", "clusterrole", "serviceaccount", "pods/exec"))


def test_setup_prints_objects_of_given_namespaces(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pipeline", "setup", *PROFILE, "--job-namespace", "jobs", "--for", "training"]
    assert run(command) == 0
    role, binding = yaml.safe_load_all(capsys.readouterr().out)
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "jobs")
    assert binding["metadata"] == {
        "name": "kfp-mindspore-training.team-a.default-editor",
        "namespace": "jobs",
        "labels": {"app.kubernetes.io/part-of": "kfp-mindspore"},
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "default-editor", "namespace": "team-a"}]
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == [role, binding]


def test_network_policy_admits_members_of_jobs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["pipeline", "setup", *PROFILE, "--job-namespace", "jobs", "--network-policy"]
    assert run([*command, "--for", "training", "--json"]) == 0
    *_, policy = json.loads(capsys.readouterr().out)["items"]
    assert (policy["kind"], policy["metadata"]["namespace"]) == ("NetworkPolicy", "jobs")
    selector = policy["spec"]["podSelector"]["matchLabels"]
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": selector}}]}]
    for replica_type in ("Scheduler", "Worker"):
        assert selector.items() <= make_labels("digits", replica_type, 0).items()
    assert run([*command, "--for", "run"]) == 2
    assert "--network-policy: there is no namespace of jobs; add --for training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "granted"),
    [
        ([], {"run": "a", "training": "a", "deployment": "a"}),
        (["--build-namespace", "b"], {"run": "a", "training": "a", "deployment": "a", "images": "b"}),
        (["--for", "images"], {"images": "a"}),
    ],
)
def test_setup_grants_image_builds_on_request_only(
    capsys: pytest.CaptureFixture[str], arguments: list[str], granted: dict[str, str]
) -> None:
    assert run(["pipeline", "setup", "-n", "a", *arguments, "--json"]) == 0
    roles = [item for item in json.loads(capsys.readouterr().out)["items"] if item["kind"] == "Role"]
    found = {item["metadata"]["name"]: item["metadata"]["namespace"] for item in roles}
    assert found == {f"kfp-mindspore-{name}": namespace for name, namespace in granted.items()}


def test_setup_prints_account_of_services_without_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "setup", "-n", "a", "--service-namespace", "b", "--model-account", "reader"]) == 0
    printed = capsys.readouterr()
    (account,) = (item for item in yaml.safe_load_all(printed.out) if item["kind"] not in ("Role", "RoleBinding"))
    assert (account["kind"], account["metadata"]["namespace"]) == ("ServiceAccount", "b")
    assert account["secrets"] == [{"name": "reader"}]
    assert "The Secret reader holds credentials and is not printed" in printed.err
    for options in (["store:9000", "--model-account", "reader"], ["http://store:9000"]):
        assert run(["pipeline", "setup", "-n", "a", "--store-endpoint", *options]) == 2
        assert "--store-endpoint: must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "Team A"], "namespace: must be at most 63 lower-case letters"),
        ([*PROFILE, "--job-namespace", "a_b"], "namespace: must be at most 63 lower-case letters"),
        (["-n", "a", "--service-account", "x y"], "--service-account: must be at most 253"),
        (["-n", "a", "--secret", ""], "--secret: must be at most 253"),
        (["-n", "a", "--model-account", "x y"], "--model-account: must be at most 253"),
        ([], "Missing option '-n'"),
    ],
)
@pytest.mark.parametrize("command", ["setup", "check"])
def test_invalid_names_are_refused(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["pipeline", command, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_check_requires_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "kubeconfig")
    assert run(["pipeline", "check", "-n", "a", "--kubeconfig", missing]) == 2
    assert f"no cluster is configured: {missing} does not exist" in capsys.readouterr().err


def test_capabilities_depend_on_steps(tmp_path: Path) -> None:
    assert list_capabilities(load_spec("digits_lifecycle")) == ["run", "training", "deployment"]
    file = tmp_path / "own.py"
    file.write_text(
        "from kfp import dsl\n"
        "from kfp_mindspore.dsl import msjob_component\n\n"
        "@msjob_component\ndef train() -> int:\n    return 1\n\n"
        "@dsl.pipeline(name='own')\ndef own():\n    train()\n"
    )
    spec: dict[str, Any] = load_spec(str(file))
    assert list_capabilities(spec) == ["run", "training"]
