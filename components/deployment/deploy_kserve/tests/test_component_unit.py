import pytest
from kfp import dsl

from ..component import deploy_kserve


@pytest.fixture
def backend(monkeypatch, tmp_path):
    from kfp_mindspore.inference import client
    from kfp_mindspore.inference.backends.local import LocalServing
    from kfp_mindspore.inference.service import ServiceState, ServiceStatus

    class RecordingBackend(LocalServing):
        """A backend that records each service instead of starting its server; the client before it is the real one."""

        def __init__(self, home) -> None:
            super().__init__(home)
            self.deployed = []

        def deploy(self, service, *, wait_seconds, lease, canary=0):
            self.deployed.append((service, wait_seconds))
            return ServiceStatus(
                name=service.name,
                namespace=service.namespace,
                state=ServiceState.READY,
                url="http://127.0.0.1:8080",
                grpc_url="127.0.0.1:8081",
                model=str(service.model_dir),
                warnings=("replicas: this machine runs one",),
            )

    backend = RecordingBackend(tmp_path)
    monkeypatch.setattr(client, "create_backend", lambda name=None: backend)
    return backend


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [({}, 120), ({"namespace": "vision", "replicas": 2, "resources": {"limits": {"cpu": "1"}}}, 5)],
)
def test_arguments_become_a_service(backend, capsys, fields, seconds) -> None:
    from kfp_mindspore.inference import Service

    outputs = deploy_kserve.python_func(
        bundle=dsl.Model(uri="/bundle"), service_name="digits", wait_seconds=seconds, **fields
    )
    assert outputs == ("http://127.0.0.1:8080", "127.0.0.1:8081", "digits")
    assert backend.deployed == [(Service("digits", "/bundle", **fields), seconds)]
    assert "warning: replicas: this machine runs one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"service_name": "Digits"}, "name: must be"),
        ({"namespace": "Vision"}, "namespace: must be"),
        ({"replicas": 0}, "replicas: must be"),
        ({"resources": {"limit": {"cpu": "1"}}}, "resources.limit: unknown field"),
        ({"resources": {"limits": {"memory": "4 Gb"}}}, "resources.limits.memory: must be"),
    ],
)
def test_invalid_argument_is_refused(backend, arguments, message) -> None:
    from kfp_mindspore.errors import ValidationError

    with pytest.raises(ValidationError, match=message):
        deploy_kserve.python_func(**{"bundle": dsl.Model(uri="/bundle"), "service_name": "digits", **arguments})
    assert not backend.deployed
