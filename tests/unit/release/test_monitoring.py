"""Dashboards, alerts and monitors: their queries use metrics that exist, and chart and kustomize install the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from kfp_mindspore.operator.process.metrics import OperatorMetrics
from mindsporeserver.language.metrics import LanguageFamilies
from mindsporeserver.observability.metrics import ServerMetrics

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "config" / "monitoring"
(RULES,) = yaml.safe_load_all((MONITORING / "rules.yaml").read_text())
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
FUNCTIONS = {
    *("sum", "avg", "max", "count", "by", "on", "and", "or", "unless"),
    *("rate", "increase", "histogram_quantile", "absent", "label_replace"),
}
ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def list_rules() -> Iterator[dict[str, Any]]:
    for group in RULES["spec"]["groups"]:
        yield from group["rules"]


def list_panels(file: Path) -> Iterator[tuple[str, str]]:
    for panel in json.loads(file.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


QUERIES = [
    *(pytest.param(query, id=f"{file.stem}: {title}") for file in DASHBOARDS for title, query in list_panels(file)),
    *(pytest.param(rule["expr"], id=rule.get("alert") or rule["record"]) for rule in list_rules()),
]


@pytest.fixture(scope="module")
def series() -> set[str]:
    """Names of all series that operator, model server and language models can have, and of recording rules."""
    registry = CollectorRegistry()
    ServerMetrics(registry)
    LanguageFamilies(registry)
    families = [*registry.collect(), *OperatorMetrics().registry.collect()]
    names = {family.name + ending for family in families for ending in ENDINGS[family.type]}
    return names | {rule["record"] for rule in list_rules() if "record" in rule}


def list_names(query: str) -> Iterable[str]:
    """Return the metrics that a query names."""
    query = re.sub(r"#.*", "", query)
    query = re.sub(r'"[^"]*"', "", query)
    query = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|on) \([^)]*\)", "", query)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", query)) - FUNCTIONS


@pytest.mark.parametrize("query", QUERIES)
def test_query_uses_existing_metrics(query: str, series: set[str]) -> None:
    names = set(list_names(query))
    assert names
    assert names <= series


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ('sum by (state) (rate(msjob_jobs{state="a"}[5m])) > 1  # seconds', {"msjob_jobs"}),
        ("vllm:num_requests_running / on (model_name) other", {"vllm:num_requests_running", "other"}),
    ],
)
def test_names_of_query(query: str, names: set[str]) -> None:
    assert list_names(query) == names


def test_counters_of_alerts_start_at_zero() -> None:
    """Prometheus' increase() misses the first event of a series that begins with it."""
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in OperatorMetrics().registry.collect()
        for sample in family.samples
    }
    for name in (("msjob_finished_total", "Failed"), ("msjob_hangs_total",), ("msjob_restarts_total", "JobRestarting")):
        assert samples[name] == 0


def test_each_alert_is_documented() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    documented = re.findall(r"^\| `(M\w+)` \|", page, re.MULTILINE)
    assert documented == [rule["alert"] for rule in list_rules() if "alert" in rule]


def test_kustomization_has_monitors_rules_and_dashboards() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH, whose `kubectl kustomize` builds the folder")
    command = ["kubectl", "kustomize", str(MONITORING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    documents = list(yaml.safe_load_all(done.stdout))
    assert sorted(item["kind"] for item in documents) == [
        *["ConfigMap"] * len(DASHBOARDS),
        *("PodMonitor", "PrometheusRule", "ServiceMonitor"),
    ]
    assert [item for item in documents if item["kind"] == "PrometheusRule"] == [RULES]
    found = {name: text for item in documents for name, text in item.get("data", {}).items()}
    assert found == {file.name: file.read_text() for file in DASHBOARDS}
    for item in documents:
        if item["kind"] == "ConfigMap":
            assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
