import pytest
from kfp import dsl

from kfp_mindspore import inference
from kfp_mindspore.components.deployment.deploy_kserve import deploy_kserve
from kfp_mindspore.inference import Service, ServiceState, ServiceStatus


@pytest.mark.parametrize(
    ("arguments", "service", "seconds"),
    [
        ({}, Service("digits", "/bundle"), 120),
        (
            {"namespace": "vision", "replicas": 2, "resources": {"limits": {"cpu": "1"}}, "wait_seconds": 5},
            Service("digits", "/bundle", replicas=2, resources={"limits": {"cpu": "1"}}, namespace="vision"),
            5,
        ),
    ],
)
def test_service_is_what_was_asked_for(monkeypatch, capsys, arguments, service, seconds) -> None:
    calls = []

    class Client:
        def deploy(self, service, wait_seconds):
            calls.append((service, wait_seconds))
            return ServiceStatus(
                name=service.name,
                namespace=service.namespace,
                state=ServiceState.READY,
                url="http://127.0.0.1:8080",
                grpc_url="127.0.0.1:8081",
                model=str(service.model_dir),
                warnings=("replicas: this machine runs one",),
            )

    monkeypatch.setattr(inference, "InferenceClient", Client, raising=False)
    outputs = deploy_kserve.python_func(bundle=dsl.Model(uri="/bundle"), service_name="digits", **arguments)
    assert outputs == ("http://127.0.0.1:8080", "127.0.0.1:8081", "digits")
    assert calls == [(service, seconds)]
    assert "warning: replicas: this machine runs one" in capsys.readouterr().out
