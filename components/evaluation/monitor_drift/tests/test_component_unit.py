import json

import pytest
from kfp import dsl

from ..component import monitor_drift

pytest_plugins = ["kfp_mindspore.testing"]


@pytest.fixture
def monitor(lifecycle, tmp_path, monkeypatch):
    """Compare a log of held-out digits, each brightness times a factor, with the training's."""
    from kfp_mindspore.data import read_samples

    def call(factor=1.0, count=360, **arguments):
        images = next(iter(read_samples(lifecycle.dataset, "test", count=count, preprocessing={}).raw.values()))
        with (tmp_path / "log.jsonl").open("w") as stream:
            for index, image in enumerate((images * factor).tolist()):
                event = {"specversion": "1.0", "id": str(index), "source": "x", "inferenceservicename": "digits"}
                event |= {"type": "org.kubeflow.serving.inference.request", "time": "2026-01-01T00:00:00Z"}
                stream.write(json.dumps({**event, "data": {"instances": [image]}}) + "\n")
        monkeypatch.setenv("KFP_MINDSPORE_EVENTS", str(tmp_path / "events.jsonl"))
        metrics, report = dsl.Metrics(metadata={}), dsl.HTML(uri=str(tmp_path / "report.html"), metadata={})
        outputs = monitor_drift.python_func(
            model=dsl.Model(uri=str(lifecycle.bundle)),
            metrics=metrics,
            report=report,
            log=str(tmp_path / "log.jsonl"),
            **arguments,
        )
        return outputs, metrics.metadata, (tmp_path / "report.html").read_text()

    return call


@pytest.mark.parametrize(
    ("factor", "arguments", "passed", "rows"),
    [
        (1.0, {}, True, 360),
        (0.5, {}, False, 360),
        (0.5, {"effect": 50.0}, True, 360),
        (1.0, {"window": "120", "service_name": "digits"}, True, 120),
    ],
)
def test_outputs_report_and_gate(monitor, tmp_path, capsys, factor, arguments, passed, rows) -> None:
    """Outputs, report and gate."""
    outputs, metrics, page = monitor(factor, **arguments)
    assert (outputs.passed, outputs.rows, outputs.metric, outputs.fallen) == (passed, rows, "drifted", False)
    assert outputs.value == len(outputs.drifted)
    assert bool(outputs.drifted) is not passed
    assert (metrics["rows"], metrics["drifted"]) == (rows, len(outputs.drifted))
    assert ("<h1>No drift</h1>" in page) is passed
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert (event["kind"], event["passed"]) == ("gate", passed)
    assert f"{rows} rows: {'no drift' if passed else 'drift in '}" in capsys.readouterr().out


def test_labels_add_metric(monitor, tmp_path, lifecycle) -> None:
    """Without responses labels are reported, and are no failure."""
    labels = tmp_path / "labels.csv"
    labels.write_text("id,label\n" + "".join(f"{index},1\n" for index in range(360)))
    outputs, _, page = monitor(labels=str(labels))
    assert outputs.passed
    assert "360 requests have other row counts than labels or responses" in page


def test_foreign_log_fails_step(monitor) -> None:
    """Another service's log fails the step."""
    from kfp_mindspore.errors import UserError

    with pytest.raises(UserError, match="360 events of other services"):
        monitor(service_name="houses")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"service_name": "digits"}, "there is no log to compare"),
        ({"service_name": "digits", "log": "log.jsonl"}, "service digits: does not exist"),
        ({"service_name": "digits", "max_age": 30.0}, "service digits: does not exist"),
    ],
)
def test_nothing_to_compare_is_reason_to_retrain(local_home, tmp_path, arguments, reason) -> None:
    """Without a log or a service there is nothing to compare, and the model is to be trained."""
    metrics, report = dsl.Metrics(metadata={}), dsl.HTML(uri=str(tmp_path / "report.html"), metadata={})
    outputs = monitor_drift.python_func(metrics=metrics, report=report, **arguments)
    assert (outputs.passed, outputs.retrain, outputs.rows, outputs.reason) == (True, True, 0, reason)
    assert reason in (tmp_path / "report.html").read_text()


def test_model_or_service_is_needed(tmp_path) -> None:
    """Without a model and a service's name the step fails."""
    from kfp_mindspore.errors import UserError

    report = dsl.HTML(uri=str(tmp_path / "report.html"), metadata={})
    with pytest.raises(UserError, match="must have model or service_name"):
        monitor_drift.python_func(metrics=dsl.Metrics(metadata={}), report=report, log="log.jsonl")


def test_drift_without_gate_is_reason_to_retrain(monitor, tmp_path) -> None:
    """Without a gate a drift does not stop the run."""
    outputs, _, _ = monitor(0.5, gate=False)
    assert (outputs.passed, outputs.retrain) == (True, True)
    assert outputs.reason.startswith("360 rows: drift in ")
    assert not (tmp_path / "events.jsonl").exists()
    outputs, _, _ = monitor(1.0)
    assert (outputs.passed, outputs.retrain, outputs.reason) == (True, False, "360 rows: no drift")


@pytest.mark.parametrize(("max_age", "retrain"), [(1.0, False), (1e-9, True)], ids=["younger", "older"])
def test_age_of_served_version_is_reason_to_retrain(local_services, monitor, tmp_path, max_age, retrain) -> None:
    """A version that serves for longer than max_age is retrained, with a log and without one."""
    local_services.deploy()
    metrics, report = dsl.Metrics(metadata={}), dsl.HTML(uri=str(tmp_path / "report.html"), metadata={})
    outputs = monitor_drift.python_func(metrics=metrics, report=report, service_name="digits", max_age=max_age)
    assert (outputs.passed, outputs.retrain, outputs.rows) == (True, retrain, 0)
    assert outputs.reason.startswith("service digits: version 1 is ")
    assert outputs.reason.endswith(f"days old, max_age is {max_age:g}")
    outputs, _, _ = monitor(service_name="digits", max_age=max_age)
    assert (outputs.passed, outputs.retrain, outputs.rows) == (True, retrain, 360)
    assert ("; version 1 is " in outputs.reason) is retrain


@pytest.mark.parametrize(
    "arguments", [{"max_age": -1.0}, {"max_age": float("nan")}, {"service_name": "", "max_age": 7.0}]
)
def test_age_without_service_fails_step(local_home, tmp_path, arguments) -> None:
    """An age that is no number of days, or has no service, fails the step."""
    from kfp_mindspore.errors import UserError

    report, model = dsl.HTML(uri=str(tmp_path / "report.html"), metadata={}), dsl.Model(uri="model")
    given = {"service_name": "digits", "model": model, **arguments}
    with pytest.raises(UserError, match="max_age: must be 0, or a number of days above 0 with service_name, got"):
        monitor_drift.python_func(metrics=dsl.Metrics(metadata={}), report=report, **given)
