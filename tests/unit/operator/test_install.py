"""The objects of an installation, and the equal kustomize files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kfp_mindspore.cli.operator import operator
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.operator.install import InstallOptions, build_objects
from kfp_mindspore.operator.install.objects import list_gang_rules, list_kueue_rules, load_documents
from kfp_mindspore.operator.options import GangScheduler

CONFIG = Path(__file__).parents[3] / "config" / "operator"
Document = dict[str, Any]


def build_kustomization(name: str) -> list[Document]:
    """Return what kustomize makes of a folder."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH, whose `kubectl kustomize` builds the overlays")
    done = subprocess.run(
        ["kubectl", "kustomize", str(CONFIG / name)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def by_name(documents: list[Document]) -> dict[str, Document]:
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in documents}


def find(documents: list[Document], kind: str) -> Document:
    return next(item for item in documents if item["kind"] == kind)


@pytest.mark.parametrize(
    ("name", "choices", "extra"),
    [
        ("base", InstallOptions(), []),
        ("overlays/volcano", InstallOptions(gang_scheduler="volcano"), []),
        ("overlays/scheduler-plugins", InstallOptions(gang_scheduler="scheduler-plugins"), []),
        ("overlays/istio", InstallOptions(istio_sidecar=True), []),
        ("overlays/kueue", InstallOptions(kueue=True), []),
    ],
)
def test_kustomize_matches_operator_install(name: str, choices: InstallOptions, extra: list[Document]) -> None:
    assert by_name(build_kustomization(name)) == by_name([*build_objects(choices), *extra])


@pytest.mark.parametrize("scheduler", ["volcano", "scheduler-plugins"])
def test_gang_overlays_have_rules_and_arguments_of_operator_install(scheduler: GangScheduler) -> None:
    (overlay,) = load_documents(CONFIG / "overlays" / scheduler / "kustomization.yaml")
    values = [operation["value"] for patch in overlay["patches"] for operation in yaml.safe_load(patch["patch"])]
    assert values == [*list_gang_rules(InstallOptions(gang_scheduler=scheduler)), f"--gang-scheduler={scheduler}"]


def test_kueue_overlay_has_rules_and_arguments_of_operator_install() -> None:
    (overlay,) = load_documents(CONFIG / "overlays" / "kueue" / "kustomization.yaml")
    values = [operation["value"] for patch in overlay["patches"] for operation in yaml.safe_load(patch["patch"])]
    options = InstallOptions(kueue=True)
    assert values == [*list_kueue_rules(options), "--kueue"]
    readers = load_documents(CONFIG / "overlays" / "kueue" / "kueue-roles.yaml")
    for installed in (options, InstallOptions(kueue=True, watched=("team-a", "team-b"))):
        objects = build_objects(installed)
        assert [item for item in objects if item["metadata"]["name"] == "msjob-controller-kueue"] == readers
    roles = [item for item in objects if item["kind"] == "Role" and item["metadata"]["name"] == "msjob-controller"]
    assert [item["rules"][-2:] for item in roles] == [list_kueue_rules(options)] * 2


def test_single_namespace_overlay_has_no_cluster_roles() -> None:
    documents = build_kustomization("overlays/single-namespace")
    cluster_wide = {item["metadata"]["name"] for item in documents if item["kind"].startswith("ClusterRole")}
    assert cluster_wide == {"msjob-edit", "msjob-view"}
    roles = by_name(documents)
    expected = by_name(build_objects(InstallOptions(watched=("msjob-system",))))
    assert roles["Role/msjob-controller"] == expected["Role/msjob-controller"]
    assert roles["RoleBinding/msjob-controller"] == expected["RoleBinding/msjob-controller"]
    (container,) = find(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--namespace=$(POD_NAMESPACE)" in container["args"]
    assert "POD_NAMESPACE" in {item["name"] for item in container["env"]}


def test_deployment_meets_restricted_level() -> None:
    spec = find(build_objects(InstallOptions(image="a/b@sha256:1")), "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "a/b@sha256:1"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in spec


def test_deployment_arguments_are_valid() -> None:
    choices = InstallOptions(watched=("team-a", "team-b"), gang_scheduler="volcano", istio_sidecar=True)
    (container,) = find(build_objects(choices), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["kfp-mindspore", "operator", "run"]
    context = operator.commands["run"].make_context("run", list(container["args"]))
    assert context.params["namespaces"] == ("team-a", "team-b")
    assert context.params["gang_scheduler"] == "volcano"
    assert context.params["leader_elect"] is True
    assert context.params["istio_sidecar"] is True


def test_roles_have_no_wildcards_and_no_secrets() -> None:
    for document in build_objects(InstallOptions(gang_scheduler="volcano")):
        for rule in document.get("rules") or []:
            words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not words & {"*", "secrets", "impersonate", "escalate", "bind"}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"image": "two words"}, "image"),
        ({"namespace": "Upper"}, "namespace"),
        ({"watched": ("a", "-b")}, "namespace"),
        ({"gang_scheduler": "other"}, "gang_scheduler"),
        ({"replicas": 0}, "replicas"),
    ],
)
def test_invalid_options_are_named(values: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=f"{field}: must be"):
        InstallOptions(**values)


def test_dry_run_prints_manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    done = CliRunner().invoke(operator, ["install", "--dry-run", "-n", "team-a"], catch_exceptions=False)
    assert list(yaml.safe_load_all(done.stdout)) == build_objects(InstallOptions(watched=("team-a",)))
    done = CliRunner().invoke(operator, ["install", "--dry-run", "--definition-only", "--json"], catch_exceptions=False)
    (definition,) = json.loads(done.output)["items"]
    assert definition["kind"] == "CustomResourceDefinition"


def test_definition_only_refuses_operator_options() -> None:
    words = ["install", "--definition-only", "--replicas", "2", "-n", "team-a"]
    with pytest.raises(UserError, match="--definition-only: installs no operator, which --namespace, --replicas would"):
        CliRunner().invoke(operator, words, catch_exceptions=False)


def test_missing_image_has_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    # That is the image of steps and jobs, which need not hold the operator.
    monkeypatch.setenv("KFP_MINDSPORE_IMAGE", "registry.example.com/steps")
    with pytest.raises(UserError, match="--image: is required"):
        CliRunner().invoke(operator, ["install"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["install", "--dry-run", "-n", "Bad_NS"], "namespace: must be at most 63 .* got 'Bad_NS'"),
        (["install", "--dry-run", "--operator-namespace", "Foo_"], "operator namespace: must be .* got 'Foo_'"),
        (["run", "-n", "good", "-n", "Bad_NS"], "--namespace: must be at most 63 .* got 'Bad_NS'"),
        (["run", "--leader-elect", "--lease-namespace", "x/y"], "--lease-namespace: must be .* got 'x/y'"),
        (["run", "--lease-namespace", "x"], "--lease-namespace: is for --leader-elect"),
        (["run", "--scheduler-name", "volcano"], "--scheduler-name: is for --gang-scheduler, got 'volcano'"),
    ],
)
def test_contradictory_options_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CliRunner().invoke(operator, words, catch_exceptions=False)


def test_dry_run_without_image_warns() -> None:
    runner = CliRunner()
    for words, told in (([], True), (["--image", "a.example/x:1"], False), (["--definition-only"], False)):
        done = runner.invoke(operator, ["install", "--dry-run", *words], catch_exceptions=False)
        assert (done.exit_code, "name yours with --image" in done.stderr) == (0, told), words
