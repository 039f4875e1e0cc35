"""The test of a canary, against servers that respond with the verified outputs of a bundle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.errors import GateNotMetError, ProcessFailedError
from kfp_mindspore.formats.bundle import ModelBundle
from kfp_mindspore.inference.canary import run_canary_test
from kfp_mindspore.inference.service import CanaryStatus, ServiceState, ServiceStatus
from tests.support.http_server import Handler, Server

# Server (`stable`, `canary` or `traffic`) to what it responds with: HTTP status and scores.
Responses = dict[str, Callable[[], tuple[int, Any]]]


class Servers:
    """A service, its canary and their splitter at one port; the canary responds with the bundle's outputs."""

    def __init__(self, bundle: ModelBundle, url: str) -> None:
        self.bundle = bundle
        self.scores = bundle.read_verified().outputs["scores"]
        self.responses: Responses = {
            "stable": lambda: (200, self.scores),
            "canary": lambda: (200, self.scores),
            "traffic": lambda: (400, None),
        }
        canary = CanaryStatus(10, f"{url}/canary", f"{url}/traffic", str(bundle.path), ServiceState.READY)
        self.status = ServiceStatus(
            "digits", "default", ServiceState.READY, f"{url}/stable", "", "before", canary=canary
        )

    def respond(self, path: str) -> tuple[int, dict[str, Any]]:
        status, scores = self.responses[path.split("/")[1]]()
        if status != 200:
            return status, {"error": "refused"}
        output = {"name": "scores", "shape": list(scores.shape), "data": scores.ravel().tolist()}
        return 200, {"outputs": [output]} if "/v2/" in path else {"predictions": scores.tolist()}


@pytest.fixture
def task() -> str:
    return "classification"


@pytest.fixture
def servers(local_services: Any, task: str) -> Iterator[Servers]:
    class ServersHandler(Handler):
        def do_POST(self) -> None:
            self.read_body()
            status, document = found.respond(self.path)
            self.respond(status, json.dumps(document).encode())

    with Server(ServersHandler) as server:
        found = Servers(ModelBundle.open(local_services.make_bundle(task=task)), server.url)
        yield found


def test_canary_as_accurate_as_service_passes(servers: Servers) -> None:
    report = run_canary_test(servers.status, servers.bundle.path)
    assert report.smoke.samples == 40
    assert report.agreement == 1.0
    assert report.canary_value == report.stable_value
    assert report.metric == "accuracy"


def test_less_accurate_canary_does_not_pass(servers: Servers) -> None:
    labels = servers.bundle.read_verified().labels
    servers.responses["stable"] = lambda: (200, np.eye(3, dtype=np.float32)[labels])
    with pytest.raises(GateNotMetError, match=r"accuracy 0\.\d+ on 40 samples, the service has 1\.0000"):
        run_canary_test(servers.status, servers.bundle.path)
    report = run_canary_test(servers.status, servers.bundle.path, max_worsening=1.0)
    assert report.stable_value == 1.0
    assert report.agreement == report.canary_value


def test_canary_that_differs_from_its_bundle_does_not_pass(servers: Servers) -> None:
    servers.responses["canary"] = lambda: (200, servers.scores + 1)
    with pytest.raises(ProcessFailedError, match=r"output scores: sample \d+ differs by 1"):
        run_canary_test(servers.status, servers.bundle.path)


def test_service_with_other_inputs_is_not_compared(servers: Servers) -> None:
    servers.responses["stable"] = lambda: (400, None)
    assert run_canary_test(servers.status, servers.bundle.path).agreement is None


@pytest.mark.parametrize(("server", "name"), [("stable", "service digits"), ("traffic", "traffic splitter")])
def test_failing_server_does_not_pass(servers: Servers, server: str, name: str) -> None:
    servers.responses[server] = lambda: (502, None)
    with pytest.raises(ProcessFailedError, match=f"{name}.*answered 502"):
        run_canary_test(servers.status, servers.bundle.path)


@pytest.mark.parametrize("task", ["regression"])
def test_regression_is_compared_by_its_error(servers: Servers) -> None:
    verified = servers.bundle.read_verified()
    servers.responses["stable"] = lambda: (200, verified.labels[:, None])
    with pytest.raises(GateNotMetError, match=r"canary of service digits: rmse 0\.\d+ on 40 samples, .* has 0\.0000"):
        run_canary_test(servers.status, servers.bundle.path, max_worsening=0.1)
    report = run_canary_test(servers.status, servers.bundle.path, max_worsening=2.0)
    assert (report.agreement, report.metric, report.stable_value) == (None, "rmse", 0.0)
    assert report.smoke.label == "0"
    assert float(report.smoke.prediction) == pytest.approx(float(verified.outputs["scores"][0, 0]), rel=1e-5)
    servers.responses["stable"] = lambda: (200, verified.labels[:, None] + 5)
    assert run_canary_test(servers.status, servers.bundle.path).stable_value == pytest.approx(5)


@pytest.mark.parametrize("task", ["ranking"])
def test_ranking_is_compared_by_groups(servers: Servers) -> None:
    verified = servers.bundle.read_verified()
    # Ordered within each group, not over all samples.
    servers.responses["stable"] = lambda: (200, verified.labels[:, None] + 10 * verified.groups[:, None])
    report = run_canary_test(servers.status, servers.bundle.path, max_worsening=1.0)
    assert (report.metric, report.stable_value) == ("ndcg@10", 1.0)
    assert 0 < report.canary_value < 1


@pytest.mark.parametrize("task", ["language_model"])
def test_padding_of_text_is_not_compared(servers: Servers) -> None:
    targets = servers.bundle.read_verified().labels
    assert (targets == 0).any()
    # Certain of each character, and wrong about the padding.
    servers.responses["stable"] = lambda: (200, np.eye(3, dtype=np.float32)[np.maximum(targets, 1)])
    report = run_canary_test(servers.status, servers.bundle.path, max_worsening=10.0)
    assert (report.metric, report.stable_value) == ("perplexity", pytest.approx(1))
    assert report.canary_value > 1


def test_service_with_other_classes_has_no_metric(servers: Servers) -> None:
    servers.responses["stable"] = lambda: (200, np.ones((40, 2), np.float32))
    report = run_canary_test(servers.status, servers.bundle.path)
    assert (report.metric, report.stable_value) == ("accuracy", None)
