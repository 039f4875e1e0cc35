"""Each query of a panel has a series, and each alert fires on its fault and not before."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.monitoring.conftest import FAILING, LONG, SLOW, System, post_image, post_prompt, repeat
from tests.monitoring.prometheus import MONITORING, WINDOW, read_rules

ALERTS = [
    rule["alert"] for group in yaml.safe_load(read_rules())["groups"] for rule in group["rules"] if "alert" in rule
]
PANELS = [
    pytest.param(target["expr"], id=f"{file.stem}: {panel['title']}: {target['legendFormat'].partition(' ')[0]}")
    for file in sorted((MONITORING / "dashboards").glob("*.json"))
    for panel in json.loads(file.read_text())["panels"]
    for target in panel["targets"]
]


def check_fault(system: System, expected: set[tuple[str, str]], *, before: set[tuple[str, str]]) -> None:
    """Wait until these alerts fire, and no other one that did not fire before."""
    prometheus = system.prometheus
    prometheus.wait_for(lambda: expected <= prometheus.list_firing(), lambda: str(prometheus.list_firing()))
    assert prometheus.list_firing() - before == expected


def list_before(system: System, expected: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the alerts that fire before a fault, none of which are those expected."""
    before = system.prometheus.list_firing()
    assert not before & expected
    return before


def test_no_alert_fires_while_every_server_answers(system: System, load: None) -> None:
    prometheus = system.prometheus
    # Until the windows of all four targets are full.
    prometheus.wait_for(lambda: len(prometheus.query(f"count_over_time(up[{WINDOW}]) > 15")) == 4)
    rules = list(prometheus.list_rules())
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}
    assert prometheus.list_firing() == set()
    assert len(rules) > len(ALERTS)


def test_pods_are_those_of_pod_monitor(system: System) -> None:
    up = {labels.get("inferenceservice"): value for labels, value in system.prometheus.query('up{job="pods"}')}
    assert up == {"digits": 1, "digits-canary": 1, "chat": 1}
    names = {labels["__name__"] for labels, _ in system.prometheus.query('{job="pods", __name__!~"up|scrape_.*"}')}
    assert {name.partition("_")[0].partition(":")[0] for name in names} == {"mindsporeserver", "vllm"}


@pytest.mark.parametrize("query", PANELS)
def test_panel_has_series(system: System, load: None, query: str) -> None:
    query = query.replace("$__rate_interval", WINDOW).replace("$model", ".*")

    def has_value() -> bool:
        return any(not math.isnan(value) for _, value in system.prometheus.query(query))

    system.prometheus.wait_for(has_value, lambda: f"{query}: {system.prometheus.query(query)}")


def test_failed_job(system: System) -> None:
    before = list_before(system, expected := {("MSJobFailed", "")})
    system.jobs.create("failing", workers=1, restart_policy="Never")
    system.jobs.launch("failing", 1)
    system.jobs.end("failing-worker-0", 1)
    check_fault(system, expected, before=before)


def test_hung_worker(system: System) -> None:
    before = list_before(system, expected := {("MSJobWorkerHung", "")})
    system.jobs.create("hung", workers=2, backoffLimit=3)
    system.jobs.launch("hung", 3)
    system.jobs.end("hung-worker-1", 76)
    check_fault(system, expected, before=before)


@pytest.mark.parametrize(
    ("pixel", "expected"),
    [
        (FAILING, {("MindSporeServerErrors", "digits-canary"), ("MindSporeCanaryErrors", "digits")}),
        (SLOW, {("MindSporeServerSlow", "digits-canary"), ("MindSporeCanarySlow", "digits")}),
    ],
    ids=["failing", "slow"],
)
def test_canary_with_fault(system: System, load: None, pixel: float, expected: set[tuple[str, str]]) -> None:
    before = list_before(system, expected)
    with repeat(lambda: post_image(system.canary, pixel), clients=2):
        check_fault(system, expected, before=before)


def test_bundle_that_cannot_be_loaded(system: System, bundles: Path) -> None:
    before = list_before(system, expected := {("MindSporeServerLoadFailed", "digits-canary")})
    (bundles / "faulty" / "model.mindir").write_bytes(b"damaged")
    check_fault(system, expected, before=before)
    assert post_image(system.canary) == 200


def test_language_model_with_many_clients(system: System) -> None:
    slow, full = ("MindSporeLanguageModelSlow", "chat"), ("MindSporeServerQueueFull", "chat")
    before = list_before(system, {slow, full})
    with repeat(lambda: post_prompt(system.chat, LONG), clients=15):
        check_fault(system, {slow}, before=before)
    with repeat(lambda: post_prompt(system.chat, LONG), clients=40):
        check_fault(system, {full}, before={*before, slow})


def test_operator_that_is_down(system: System) -> None:
    before = list_before(system, expected := {("MSJobOperatorDown", "")})
    system.operator.stop()
    check_fault(system, expected, before=before)


# Series at an interval of a minute, and the minutes at which the alert does not and does fire.
_SERVICE = 'namespace="team", inferenceservice="digits", model_name="digits"'
_CANARY = _SERVICE.replace('ce="digits"', 'ce="digits-canary"')
_REQUESTS, _FAILURES = "mindsporeserver_requests_total", "mindsporeserver_request_failures_total"
_SECONDS = "mindsporeserver_request_seconds"
RULES = {
    "MSJobFailed": ({'msjob_finished_total{state="Failed"}': "0x9 1x60"}, 9, 11),
    "MSJobWorkerHung": ({"msjob_hangs_total": "0x9 1x60"}, 9, 11),
    "MSJobOperatorDown": ({"msjob_leading": "1x9 0x60"}, 14, 15),
    "MindSporeServerQueueFull": ({f'{_FAILURES}{{{_SERVICE}, reason="overload"}}': "0x9 1x60"}, 9, 11),
    "MindSporeServerErrors": (
        {f"{_REQUESTS}{{{_SERVICE}}}": "0+60x60", f'{_FAILURES}{{{_SERVICE}, reason="error"}}': "0x9 0+6x60"},
        14,
        25,
    ),
    "MindSporeServerSlow": (
        {
            f'{_SECONDS}_bucket{{{_SERVICE}, le="1.0"}}': "0+60x60",
            f'{_SECONDS}_bucket{{{_SERVICE}, le="2.5"}}': "0+62x60",
            f'{_SECONDS}_bucket{{{_SERVICE}, le="+Inf"}}': "0+62x60",
        },
        10,
        13,
    ),
    "MindSporeLanguageModelSlow": (
        {
            f'vllm:time_to_first_token_seconds_bucket{{{_SERVICE}, le="10.0"}}': "0+60x60",
            f'vllm:time_to_first_token_seconds_bucket{{{_SERVICE}, le="20.0"}}': "0+62x60",
            f'vllm:time_to_first_token_seconds_bucket{{{_SERVICE}, le="+Inf"}}': "0+62x60",
        },
        10,
        13,
    ),
    "MindSporeServerLoadFailed": ({f'mindsporeserver_loads_total{{{_SERVICE}, result="failed"}}': "0x9 1x60"}, 9, 11),
    "MindSporeCanaryErrors": (
        {
            f"{_REQUESTS}{{{_SERVICE}}}": "0+60x60",
            f"{_REQUESTS}{{{_CANARY}}}": "0+60x60",
            f'{_FAILURES}{{{_SERVICE}, reason="overload"}}': "0+1x60",
            f'{_FAILURES}{{{_CANARY}, reason="overload"}}': "0+6x60",
        },
        5,
        10,
    ),
    "MindSporeCanarySlow": (
        {
            f"{_SECONDS}_count{{{_SERVICE}}}": "0+60x60",
            f"{_SECONDS}_sum{{{_SERVICE}}}": "0+6x60",
            f"{_SECONDS}_count{{{_CANARY}}}": "0+60x60",
            f"{_SECONDS}_sum{{{_CANARY}}}": "0+12x60",
        },
        5,
        10,
    ),
}


@pytest.fixture
def promtool(tmp_path: Path) -> Callable[..., None]:
    """Return a function that runs promtool in a directory with the rules as they are shipped."""
    (tmp_path / "rules.yml").write_text(read_rules())

    def run(*words: str) -> None:
        done = subprocess.run(["promtool", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return run


def test_rules_pass_promtool(promtool: Callable[..., None]) -> None:
    promtool("check", "rules", "rules.yml")
    assert list(RULES) == ALERTS


@pytest.mark.parametrize("alert", RULES)
def test_alert_fires_after_its_time(alert: str, promtool: Callable[..., None], tmp_path: Path) -> None:
    series, quiet, firing = RULES[alert]
    query = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{quiet}m", "exp_samples": []},
            {"expr": query, "eval_time": f"{firing}m", "exp_samples": [{"labels": "{}", "value": 1}]},
        ],
    }
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]})
    )
    promtool("test", "rules", "test.yml")
