from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.evaluation.drift import Distribution, DriftTest
from kfp_mindspore.mindir.monitoring.monitor import DriftReport, LabelledMetric
from kfp_mindspore.steps.evaluation.drift import describe_report, publish_metrics
from kfp_mindspore.steps.evaluation.drift_report import render_drift, render_prometheus
from tests.support.http_server import Handler, Server

NAME = 'a "column" <b>\\'


def make_report(count: int = 2, *, metric: bool = True) -> DriftReport:
    tests = [DriftTest("age", "value", "ks", 0.02, 0.4, 0.01, 0.1, 0.8)]
    tests += [DriftTest(f"{NAME}{index}", "value", "unseen", 0.3, 1e-9, 0.7, 0.1, 1e-8) for index in range(count - 1)]
    shares = [Distribution(test.column, "value", ("1", "2"), (0.5, 0.5), (0.25, 0.75)) for test in tests]
    found = LabelledMetric("accuracy", 0.7, 0.65, 0.75, 200, 0.9, True) if metric else None
    skipped = {"foreign events": 3}
    return DriftReport(
        "model", 1000, 0.0, float("-inf"), tuple(tests), 0.05, tuple(shares), {"x": "the log has its hashes"},
        ("pets",), skipped, found, ("a note",),
    )  # fmt: skip


class _Counter(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_page_shows_tests_metric_and_distributions() -> None:
    page = render_drift(make_report())
    found = _Counter()
    found.feed(page)
    assert (found.tags.count("svg"), found.tags.count("rect"), found.tags.count("b")) == (2, 8, 0)
    for text in ("the log has its hashes", "pets", "foreign events", "a note", "fallen", "0.6500 to 0.7500", "unknown"):
        assert text in page
    # Drifted columns come first.
    assert page.index('<td class="text">a &#34;column') < page.index('<td class="text">age')
    assert "http" not in page.replace("http-equiv", "")


def test_page_of_many_columns_is_bounded() -> None:
    page = render_drift(make_report(500, metric=False))
    assert page.count("<svg") == 60
    assert "440 further columns are not drawn" in page


def test_numbers_for_prometheus_are_parsed() -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(render_prometheus(make_report(), NAME))
    }
    (detected,) = families["kfp_mindspore_drift_detected"].samples
    assert (detected.labels, detected.value) == ({"service": NAME}, 1)
    values = {sample.labels["column"]: sample.value for sample in families["kfp_mindspore_drift_p_value"].samples}
    assert values == {"age": 0.8, f"{NAME}0": 1e-8}
    bounds = {sample.labels["bound"]: sample.value for sample in families["kfp_mindspore_drift_metric"].samples}
    assert bounds == {"value": 0.7, "low": 0.65, "high": 0.75, "reference": 0.9}


def test_outcome_is_one_line() -> None:
    text = describe_report(make_report())
    assert text.endswith("accuracy 0.7000, 95 % interval 0.6500 to 0.7500, fallen from 0.9000")
    assert text.startswith("1000 rows: drift in a ")


@pytest.fixture
def gateway() -> Iterator[Server]:
    """A Pushgateway, which answers 202 to PUT of a group."""

    class Gateway(Handler):
        def do_PUT(self) -> None:
            body = self.read_body().decode()
            is_group = self.path == "/metrics/job/kfp_mindspore_drift/service/a%2Fb"
            pushed.append((self.path, len(list(text_string_to_metric_families(body)))))
            self.respond(202 if is_group else 400, b"" if is_group else b"invalid label name")

    pushed: list[tuple[str, int]] = []
    with Server(Gateway) as server:
        server.pushed = pushed  # type: ignore[attr-defined]
        yield server


def test_numbers_are_pushed(gateway: Server) -> None:
    publish_metrics(make_report(), "a/b", f"{gateway.url}/")
    assert gateway.pushed == [("/metrics/job/kfp_mindspore_drift/service/a%2Fb", 6)]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"prometheus: http://.*/c answered 400 invalid label name"):
        publish_metrics(make_report(), "c", gateway.url)


def test_silent_gateway_is_named() -> None:
    with pytest.raises(KfpMindSporeError, match=r"prometheus: http://127.0.0.1:9/metrics.* cannot be reached"):
        publish_metrics(make_report(), "a", "http://127.0.0.1:9")


def test_file_of_numbers_replaces_earlier_one_only(tmp_path: Path) -> None:
    file = tmp_path / "drift.prom"
    for _ in range(2):
        publish_metrics(make_report(), "a", str(file))
    assert file.read_text().startswith("# HELP kfp_mindspore_drift_detected")
    file.write_text("mine")
    with pytest.raises(UserError, match=r"drift.prom: is a file with other content"):
        publish_metrics(make_report(), "a", str(file))
    publish_metrics(make_report(), "a", "")
