"""The Helm chart: the objects of the commands whose options are its values, by Helm itself."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kfp_mindspore.cli.main import run
from release.chart import KEEP
from release.files import pack_chart
from tests.support.kube.helm import CHART, Document, Helm

MONITORING = Path(__file__).parents[2] / "config" / "monitoring"
IMAGE = "registry.example.com/team/image@sha256:1"


def by_name(documents: list[Document]) -> dict[str, Document]:
    found = {}
    for item in documents:
        metadata = item["metadata"]
        found[f"{item['kind']}/{metadata.get('namespace', '')}/{metadata['name']}"] = item
    assert len(found) == len(documents)
    return found


def print_objects(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[Document]:
    """Return the objects that a command prints."""
    capsys.readouterr()
    assert run([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    objects: list[Document] = printed.get("items", [printed])
    return objects


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, []),
        ({"namespace": "jobs", "replicas": 1}, ["--operator-namespace", "jobs", "--replicas", "1"]),
        ({"gangScheduler": "volcano"}, ["--gang-scheduler", "volcano"]),
        (
            {"gangScheduler": "scheduler-plugins", "istioSidecar": True},
            ["--gang-scheduler", "scheduler-plugins", "--istio-sidecar"],
        ),
        ({"podSecurity": "none"}, ["--pod-security", "none"]),
        ({"kueue": True}, ["--kueue"]),
        (
            {"kueue": True, "watched": ["team-a"], "podSecurity": "none"},
            ["--kueue", "-n", "team-a", "--pod-security", "none"],
        ),
        ({"watched": ["team-a"]}, ["-n", "team-a"]),
        (
            {"watched": ["team-a", "7"], "gangScheduler": "volcano"},
            ["-n", "team-a", "-n", "7", "--gang-scheduler", "volcano"],
        ),
        (
            {
                "watched": ["a", "b"],
                "gangScheduler": "scheduler-plugins",
                "istioSidecar": True,
                "podSecurity": "none",
                "replicas": 3,
                "namespace": "x",
            },
            [
                *("-n", "a", "-n", "b", "--gang-scheduler", "scheduler-plugins", "--istio-sidecar"),
                *("--pod-security", "none", "--replicas", "3", "--operator-namespace", "x"),
            ],
        ),
    ],
)
def test_operator_is_that_of_install(
    values: Document, words: list[str], helm: Helm, capsys: pytest.CaptureFixture[str]
) -> None:
    found = by_name(helm.render(operator={"image": IMAGE, **values}))
    expected = by_name(print_objects(["operator", "install", "--dry-run", "--image", IMAGE, *words], capsys))
    definition = expected["CustomResourceDefinition//msjobs.mindspore.gitee.com"]["metadata"]
    definition["annotations"] = {**definition.get("annotations", {}), **KEEP}
    assert found == expected


RUNTIME, RIGHTS = ["service", "runtime", "--image", IMAGE], ["pipeline", "setup"]


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("runtime", {"image": IMAGE}, RUNTIME),
        (
            "runtime",
            {"image": IMAGE, "namespace": "team", "name": "mine", "autoSelect": False},
            [*RUNTIME, "-n", "team", "--name", "mine", "--no-auto-select"],
        ),
        ("languageRuntime", {"image": IMAGE}, [*RUNTIME, "--model-format", "mindspore-lm"]),
        ("pipelines", {"namespace": "kubeflow"}, [*RIGHTS, "-n", "kubeflow"]),
        (
            "pipelines",
            {
                "namespace": "team",
                "serviceAccount": "default-editor",
                "images": ["builds"],
                "secrets": ["store", "mlpipeline-minio-artifact"],
            },
            [
                *RIGHTS,
                *("-n", "team", "--service-account", "default-editor", "--build-namespace", "builds"),
                *("--secret", "store", "--secret", "mlpipeline-minio-artifact"),
            ],
        ),
        (
            "pipelines",
            {
                "namespace": "team",
                "training": ["jobs", "jobs", "more"],
                "deployment": ["models"],
                "capabilities": ["ray", "training", "deployment"],
                "modelAccount": "reader",
                "networkPolicy": True,
            },
            [
                *RIGHTS,
                *("-n", "team", "--job-namespace", "jobs", "--job-namespace", "jobs", "--job-namespace", "more"),
                *("--service-namespace", "models", "--for", "ray", "--for", "training", "--for", "deployment"),
                *("--model-account", "reader", "--network-policy"),
            ],
        ),
    ],
)
def test_further_objects_are_those_of_their_command(
    section: str, values: Document, words: list[str], helm: Helm, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"operator": {"enabled": False}, section: {"enabled": True, **values}}
    found = by_name(helm.render(**sections))
    assert found.pop("CustomResourceDefinition//msjobs.mindspore.gitee.com")
    assert found == by_name(print_objects(words, capsys))


def test_monitoring_is_that_of_kustomize(helm: Helm) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH, whose `kubectl kustomize` builds config/monitoring")
    built = subprocess.run(["kubectl", "kustomize", str(MONITORING)], capture_output=True, text=True, check=True)
    found = by_name(helm.render(operator={"enabled": False}, monitoring={"enabled": True}))
    assert found.pop("CustomResourceDefinition//msjobs.mindspore.gitee.com")
    assert found == by_name(list(yaml.safe_load_all(built.stdout)))


def test_values_change_monitors_and_alerts(helm: Helm) -> None:
    values = {"enabled": True, "labels": {"release": "7"}, "dashboards": False, "p99Seconds": 0.25}
    objects = helm.render(operator={"image": IMAGE, "namespace": "jobs"}, monitoring=values)
    found = {item["kind"]: item for item in objects}
    assert "ConfigMap" not in found
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert found[kind]["metadata"]["labels"]["release"] == "7"
    assert found["ServiceMonitor"]["spec"]["namespaceSelector"] == {"matchNames": ["jobs"]}
    rules = {rule.get("alert"): rule for group in found["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]}
    assert "> 0.25 " in rules["MindSporeServerSlow"]["expr"]
    assert "> 10 " in rules["MindSporeLanguageModelSlow"]["expr"]


def test_chart_passes_lint(helm: Helm) -> None:
    every = {name: {"enabled": True, "image": IMAGE} for name in ("operator", "runtime", "languageRuntime")}
    pipelines = {"enabled": True, "namespace": "kubeflow"}
    for sections in ({}, {**every, "pipelines": pipelines, "monitoring": {"enabled": True}}):
        helm.run("lint", "--strict", str(CHART), **sections)


def test_namespace_of_release_is_left_to_helm(helm: Helm) -> None:
    text = helm.run("template", "kfp", str(CHART), "--namespace", "msjob-system", operator={"image": IMAGE})
    assert "Namespace" not in {item["kind"] for item in yaml.safe_load_all(text) if item}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"operator": {"image": IMAGE, "replicas": "two"}}, "at '/operator/replicas': got string, want integer"),
        ({"operator": {"image": IMAGE, "replicas": 0}}, "at '/operator/replicas': minimum: got 0, want 1"),
        ({"operator": {"image": IMAGE, "watched": "team-a"}}, "at '/operator/watched': got string, want array"),
        ({"operator": {"image": IMAGE, "istioSidecar": "no"}}, "at '/operator/istioSidecar': got string, want boolean"),
        (
            {"operator": {"image": IMAGE, "gangScheduler": "kueue"}},
            "at '/operator/gangScheduler': value must be one of 'none', 'volcano', 'scheduler-plugins'",
        ),
        ({"operator": {"image": IMAGE, "replica": 1}}, "at '/operator': additional properties 'replica' not allowed"),
        ({"operators": {}}, "at '': additional properties 'operators' not allowed"),
    ],
)
def test_wrong_value_has_one_message(sections: Document, message: str, helm: Helm) -> None:
    done = helm("template", "kfp", str(CHART), **sections)
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("- at ")] == [f"- {message}"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "operator.image: is required"),
        ({"operator": {"enabled": False}, "runtime": {"enabled": True}}, "runtime.image: is required"),
        ({"operator": {"enabled": False}, "pipelines": {"enabled": True}}, "pipelines.namespace: is required"),
    ],
)
def test_missing_value_is_named(sections: Document, message: str, helm: Helm) -> None:
    done = helm("template", "kfp", str(CHART), **sections)
    assert done.returncode == 1
    assert message in done.stderr


def test_released_archive_is_the_chart(tmp_path: Path, helm: Helm) -> None:
    archive = tmp_path / "chart.tgz"
    archive.write_bytes(pack_chart(CHART, 0))
    of_archive, of_folder = (
        helm.run("template", "kfp", str(path), operator={"image": IMAGE}) for path in (archive, CHART)
    )
    assert of_archive == of_folder
