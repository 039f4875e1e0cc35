"""A real Prometheus with the rules and the PodMonitor of config/monitoring."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from tests.support.kube.operators import wait_for
from tests.support.ports import reserve_port

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "config" / "monitoring"
# Of rates in place of minutes, and of panels.
WINDOW = "20s"
SCRAPE = "1s"
SECONDS = 120.0


def read_rules() -> str:
    """Return the groups of the PrometheusRule as a file of Prometheus."""
    (document,) = yaml.safe_load_all((MONITORING / "rules.yaml").read_text())
    return yaml.safe_dump({"groups": document["spec"]["groups"]}, width=10_000)


def shorten_rules(text: str, first_token_seconds: float) -> str:
    """Return rules whose windows and delays are seconds."""
    text = re.sub(r"\[\d+m\]", f"[{WINDOW}]", text)
    text = re.sub(r"for: \d+m", "for: 1s", text)
    text, count = re.subn(r"> 10  # firstTokenSeconds", f"> {first_token_seconds:g}", text)
    assert count == 1
    return text


def make_target(port: int, service: str, container: str = "kserve-container") -> dict[str, Any]:
    """Return a pod as Prometheus discovers it."""
    pod = {
        "container_name": container,
        "ip": "127.0.0.1",
        "annotation_prometheus_kserve_io_port": str(port),
        "label_serving_kserve_io_inferenceservice": service,
    }
    labels = {f"__meta_kubernetes_pod_{name}": value for name, value in pod.items()}
    return {"targets": [f"undeclared-port-{container}-{port}"], "labels": {**labels, "namespace": "team"}}


def read_pod_monitor() -> dict[str, Any]:
    """Return the PodMonitor's part of a scrape configuration, as Prometheus' operator writes it."""
    documents = yaml.safe_load_all((MONITORING / "monitors.yaml").read_text())
    (monitor,) = [item for item in documents if item["kind"] == "PodMonitor"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    parts = {"relabel_configs": "relabelings", "metric_relabel_configs": "metricRelabelings"}
    return {name: [_to_snake_case(rule) for rule in endpoint[source]] for name, source in parts.items()}


def _to_snake_case(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name): value for name, value in rule.items()}


class Prometheus:
    """A process of Prometheus.

    Args:
        directory: For its configuration, log and database.
        rules: Rules, as a file's text.
        operator_port: Port of an operator.
        pods: See `make_target`.
    """

    def __init__(self, directory: Path, rules: str, operator_port: int, pods: list[dict[str, Any]]) -> None:
        self.directory = directory
        self.url = f"http://127.0.0.1:{reserve_port()}"
        self._client = httpx.Client(base_url=self.url, timeout=30)
        (directory / "rules.yml").write_text(rules)
        operator = {"targets": [f"127.0.0.1:{operator_port}"], "labels": {"namespace": "msjob-system"}}
        configuration = {
            "global": {"scrape_interval": SCRAPE, "scrape_timeout": SCRAPE, "evaluation_interval": SCRAPE},
            "rule_files": [str(directory / "rules.yml")],
            "scrape_configs": [
                {"job_name": "operator", "static_configs": [operator]},
                {"job_name": "pods", "static_configs": pods, **read_pod_monitor()},
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        program = shutil.which("prometheus")
        assert program is not None
        flags = {
            "config.file": directory / "prometheus.yml",
            "storage.tsdb.path": directory / "data",
            "web.listen-address": self.url.removeprefix("http://"),
        }
        with (directory / "log").open("wb") as log:
            command = [program, *(f"--{name}={value}" for name, value in flags.items())]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Prometheus:
        self.wait_for(self._is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        self.process.terminate()
        self.process.wait(60)

    def wait_for(self, check: Any, explain: Any = None) -> None:
        """Wait until a check of this Prometheus passes."""
        wait_for(check, explain or (lambda: (self.directory / "log").read_text()[-3000:]), SECONDS)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, (self.directory / "log").read_text()
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def _get(self, path: str, **parameters: str) -> Any:
        response = self._client.get(f"/api/v1/{path}", params=parameters)
        assert response.status_code == 200, response.text
        return response.json()["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an expression now: labels and value."""
        return [(item["metric"], float(item["value"][1])) for item in self._get("query", query=expression)["result"]]

    def list_rules(self) -> Iterator[dict[str, Any]]:
        """Yield the rules with their state."""
        for group in self._get("rules")["groups"]:
            yield from group["rules"]

    def list_firing(self) -> set[tuple[str, str]]:
        """Return the names of firing alerts with their InferenceService."""
        return {
            (item["labels"]["alertname"], item["labels"].get("inferenceservice", ""))
            for item in self._get("alerts")["alerts"]
            if item["state"] == "firing"
        }
