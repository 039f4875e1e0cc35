"""Deployment steps with real processes on this machine: which model serves after each result."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.inference import Service, client
from kfp_mindspore.inference.rest import request_json
from kfp_mindspore.inference.service import DeploymentOptions
from kfp_mindspore.steps.deployment import deploy
from kfp_mindspore.steps.deployment.deploy import NO_VERSION, Deployment, deploy_model, rollback_service

pytestmark = pytest.mark.timeout(120)


class Steps:
    """Steps that deploy bundles of a name; the server's prediction is that name, which no smoke test accepts."""

    def __init__(self, local_services: Any) -> None:
        self.services = local_services

    def deploy(self, name: str, **arguments: Any) -> Deployment:
        path = self.services.root / name
        if not path.exists():
            self.services.make_bundle(name)
        bundle: Any = SimpleNamespace(path=str(path), uri=str(path))
        return deploy_model(bundle, Service("digits", path), DeploymentOptions(wait_seconds=60, **arguments))

    def get_served(self) -> str:
        """Return the name of the bundle that serves."""
        url = self.services.connect().get("digits").url
        (prediction,) = request_json("POST", f"{url}/v1/models/digits:predict", {"instances": [0]})["predictions"]
        return str(prediction)


@pytest.fixture
def steps(local_services: Any, monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(client, "create_serving_backend", lambda name=None: local_services.connect().backend)
    monkeypatch.setenv("KFP_POD_NAME", "run")
    return Steps(local_services)


def test_versions_are_deployed_and_rolled_back(steps: Steps, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = steps.deploy("a"), steps.deploy("b")
    assert (first.version, second.version) == (1, 2)
    assert (second.name, second.deployed, second.verdict) == ("digits", True, "version 2 serves")
    assert (second.prediction, second.label) == ("", ""), "not tested"
    assert steps.get_served() == "b"
    assert rollback_service("digits", version=1)[2] == 2
    assert "version 2 serves, not 1: nothing to roll back" in capsys.readouterr().out
    assert steps.get_served() == "b"
    url, model, _ = rollback_service("digits", version=2)
    assert (url, Path(model).name) == (steps.services.connect().get("digits").url, "a")
    assert steps.get_served() == "a"


def test_first_version_is_deleted_when_its_test_fails(steps: Steps) -> None:
    with pytest.raises(ProcessFailedError) as caught:
        steps.deploy("a", smoke_samples=3)
    assert "The service was deleted: there was no version before it." in caught.value.hint
    with pytest.raises(NotFoundError):
        steps.get_served()


def test_version_before_serves_when_test_of_new_one_fails(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "_ROUTE_SECONDS", 0.0)
    steps.deploy("a")
    with pytest.raises(ProcessFailedError) as caught:
        steps.deploy("b", smoke_samples=3)
    assert "The model of version 1 was deployed again." in caught.value.hint
    assert steps.get_served() == "a"


@pytest.mark.parametrize("arguments", [{}, {"smoke_samples": 3}])
def test_version_before_serves_when_new_one_does_not_start(steps: Steps, arguments: dict[str, Any]) -> None:
    steps.deploy("a")
    with pytest.raises(ProcessFailedError, match="has no graph"):
        steps.deploy("broken", **arguments)
    assert steps.get_served() == "a"


def test_model_below_gate_changes_nothing(steps: Steps) -> None:
    steps.deploy("a")
    refused = steps.deploy("b", gate=False)
    assert (refused.url, refused.version, refused.deployed) == ("", NO_VERSION, False)
    assert "the gate is not met" in refused.verdict
    assert steps.get_served() == "a"


def test_damaged_bundle_is_refused_before_deployment(steps: Steps) -> None:
    steps.deploy("a")
    (steps.services.make_bundle("b") / "model.mindir").write_text("other")
    with pytest.raises(KfpMindSporeError, match=r"model\.mindir"):
        steps.deploy("b")
    assert steps.get_served() == "a"


def test_service_with_one_version_cannot_be_rolled_back(steps: Steps) -> None:
    steps.deploy("a")
    with pytest.raises(UserError, match="digits"):
        rollback_service("digits")
    assert steps.get_served() == "a"
