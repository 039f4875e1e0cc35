from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from ..component import deploy_kserve


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """Replace the local backend by a recording one."""
    from kfp_mindspore.inference import client
    from kfp_mindspore.inference.backends.local import LocalServingBackend
    from kfp_mindspore.inference.service import ServiceState, ServiceStatus

    class RecordingBackend(LocalServingBackend):
        """A backend that records each service instead of starting its server; the client is the real one."""

        def __init__(self, home) -> None:
            super().__init__(home)
            self.deployed = []

        def deploy(self, service, *, wait_seconds, lease, canary=0):
            self.deployed.append((service, wait_seconds, canary))
            return ServiceStatus(
                name=service.name,
                namespace=service.namespace,
                state=ServiceState.READY,
                url="http://127.0.0.1:8080",
                grpc_url="127.0.0.1:8081",
                model=str(service.model_dir),
                version=2,
                warnings=("replicas: this machine runs one",),
            )

    backend = RecordingBackend(tmp_path)
    monkeypatch.setattr(client, "create_serving_backend", lambda name=None: backend)
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "local")
    monkeypatch.setenv("KFP_POD_NAME", "digits-lifecycle-x7-system-container-impl-1")
    return backend


@pytest.fixture
def bundle(tmp_path):
    """An artifact in a store, which KFP's launcher has downloaded."""
    import numpy as np
    from kfp_mindspore.formats.bundle import Signature, TensorSpec, VerifiedSamples, write_bundle

    with write_bundle(tmp_path / "bundle") as writer:
        (writer.directory / "model.mindir").write_bytes(b"model")
        ones = np.ones((2, 1), np.float32)
        writer.write_verified(VerifiedSamples({"x": ones}, {"y": ones}, None))
        spec = TensorSpec("x", "float32", (-1, 1))
        writer.sign(Signature(inputs=(spec,), outputs=(TensorSpec("y", "float32", (-1, 1)),), mindspore_version="2.9"))
    return SimpleNamespace(path=str(tmp_path / "bundle"), uri="s3://models/run/bundle")


@pytest.mark.parametrize(
    ("arguments", "expected", "seconds", "canary"),
    [
        ({}, {}, 120, 0),
        (
            {"namespace": "vision", "replicas": 2, "resources": {"limits": {"cpu": "1"}}, "wait_seconds": 5},
            {"namespace": "vision", "replicas": 2, "resources": {"limits": {"cpu": "1"}}},
            5,
            0,
        ),
        (
            {"canary": 10, "grpc": True, "service_account": "models", "server_args": ["--max_batch=8"], "run": "r"},
            {"grpc": True, "service_account": "models", "server_args": ("--max_batch=8",), "run": "r"},
            120,
            10,
        ),
    ],
)
def test_arguments_become_service(backend, bundle, capsys, arguments, expected, seconds, canary) -> None:
    """Arguments become a service."""
    from kfp_mindspore.files import read_json
    from kfp_mindspore.inference import Service

    outputs = deploy_kserve.python_func(bundle=bundle, service_name="digits", **arguments)
    assert outputs == ("http://127.0.0.1:8080", "127.0.0.1:8081", "digits", 2, True, "version 2 serves", "", "")
    ((service, *others),) = backend.deployed
    assert others == [seconds, canary]
    defaults = {
        "model_dir": Path(bundle.path),
        "namespace": "default",
        "digest": read_json(Path(bundle.path) / "signature.json")["digest"],
        "run": "digits-lifecycle-x7-system-container-impl-1",
    }
    assert service == Service("digits", **{**defaults, **expected})
    assert "warning: replicas: this machine runs one" in capsys.readouterr().out


def test_model_below_its_gate_is_neither_deployed_nor_registered(backend, bundle, monkeypatch) -> None:
    """Model below its gate is neither deployed nor registered."""
    from kfp_mindspore.steps.deployment import register

    # The registration itself is tested with register_model.
    registration = mock.create_autospec(register.register_bundle)
    monkeypatch.setattr(register, "register_bundle", registration)
    given = {"bundle": bundle, "service_name": "digits", "registry": "http://registry.test"}
    outputs = deploy_kserve.python_func(**given, gate=False)
    assert outputs == ("", "", "digits", -1, False, "not deployed: the gate is not met", "", "")
    assert not backend.deployed
    registration.assert_not_called()
    deploy_kserve.python_func(**given)
    registration.assert_called_once_with(bundle, "digits", registry="http://registry.test", service_account_name="")


@pytest.mark.parametrize(
    ("before", "called", "outcome"),
    [
        (0, "delete", "The service was deleted: there was no version before it."),
        (1, "rollback", "The model of version 1 was deployed again."),
        (1, "failing rollback", "The rollback failed: no version before"),
        # The step deployed nothing new, so it removes nothing.
        (2, "", ""),
    ],
)
def test_failed_smoke_test_rolls_new_version_back(backend, bundle, monkeypatch, before, called, outcome) -> None:
    """Failed smoke test rolls a new version back."""
    from kfp_mindspore import inference
    from kfp_mindspore.errors import NotFoundError, ProcessFailedError, UserError

    calls, routes = [], []

    def get(name, namespace):
        if not before:
            raise NotFoundError(name)
        return SimpleNamespace(version=before)

    def rollback(name, namespace, *, wait_seconds):
        calls.append("rollback")
        if called == "failing rollback":
            raise UserError("no version before")

    def fail(*arguments, **options):
        raise ProcessFailedError("a prediction differs")

    monkeypatch.setattr(backend, "get", get)
    monkeypatch.setattr(backend, "rollback", rollback)
    monkeypatch.setattr(backend, "delete", lambda name, namespace: calls.append("delete"))
    monkeypatch.setattr(inference, "run_smoke_test", fail)
    monkeypatch.setattr("kfp_mindspore.inference.rest.wait_for_route", routes.append)
    monkeypatch.setattr("kfp_mindspore.steps.deployment.deploy._ROUTE_SECONDS", 0.0)
    with pytest.raises(ProcessFailedError, match="a prediction differs") as caught:
        deploy_kserve.python_func(bundle=bundle, service_name="digits", smoke_samples=32)
    assert routes == ["http://127.0.0.1:8080"]
    assert caught.value.hint == outcome
    assert calls == [called.split()[-1]] if called else not calls


def test_prediction_of_version_before_is_no_failure(backend, bundle, monkeypatch) -> None:
    """A node routes to the version before for a moment after the rollout."""
    from kfp_mindspore import inference
    from kfp_mindspore.errors import ProcessFailedError

    report = SimpleNamespace(samples=2, max_abs_diff=0.0, prediction="5", label="5")
    test = mock.Mock(side_effect=[ProcessFailedError("a prediction differs"), report])
    monkeypatch.setattr(inference, "run_smoke_test", test)
    monkeypatch.setattr(backend, "get", lambda name, namespace: SimpleNamespace(version=1))
    monkeypatch.setattr("kfp_mindspore.inference.rest.wait_for_route", lambda url: True)
    outputs = deploy_kserve.python_func(bundle=bundle, service_name="digits", smoke_samples=2)
    assert (outputs.deployed, outputs.prediction, test.call_count) == (True, "5", 2)


@pytest.mark.parametrize(
    ("arguments", "uri"), [({}, "s3://models/run/bundle/"), ({"model_uri": "pvc://claim/path"}, "pvc://claim/path")]
)
def test_cluster_gets_uri_of_artifact(backend, bundle, monkeypatch, arguments, uri) -> None:
    """Cluster gets the uri of the artifact."""
    monkeypatch.setenv("KFP_MINDSPORE_BACKEND", "kubernetes")
    deploy_kserve.python_func(bundle=bundle, service_name="digits", **arguments)
    assert backend.deployed[0][0].model_dir == uri


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"service_name": "Digits"}, "name: must be"),
        ({"namespace": "Vision"}, "namespace: must be"),
        ({"replicas": 0}, "replicas: must be"),
        ({"resources": {"limit": {"cpu": "1"}}}, "resources.limit: unknown field"),
        ({"resources": {"limits": {"memory": "4 Gb"}}}, "resources.limits.memory: must be"),
        ({"canary": 100}, "canary: must be an integer ≥ 0 and ≤ 99"),
        ({"download": "git"}, "download: must be"),
    ],
)
def test_invalid_argument_is_refused(backend, bundle, arguments, message) -> None:
    """Invalid argument is refused."""
    from kfp_mindspore.errors import ValidationError

    with pytest.raises(ValidationError, match=message):
        deploy_kserve.python_func(**{"bundle": bundle, "service_name": "digits", **arguments})
    assert not backend.deployed
