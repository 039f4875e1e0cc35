import pytest
from kfp import dsl

from ..component import register_model
from .registry_server import serve

pytest_plugins = ["kfp_mindspore.testing"]


def test_bundle_is_registered_by_step(run_component, lifecycle) -> None:
    """Bundle is registered by a step."""
    with serve() as registry:
        outputs = run_component(
            register_model,
            {"bundle": (dsl.Model, lifecycle.bundle)},
            model_name="digits",
            registry=registry.url,
            version="1",
        )
        (artifact,) = registry.artifacts
    assert outputs.parameters["version"] == "1"
    assert artifact["artifact"]["uri"] == str(lifecycle.bundle)


def test_local_run_without_registry_registers_nothing(run_component, lifecycle) -> None:
    """Local run without a registry registers nothing."""
    outputs = run_component(register_model, {"bundle": (dsl.Model, lifecycle.bundle)}, model_name="digits")
    assert outputs.parameters == {"model_id": "", "version_id": "", "version": ""}
    assert "nothing is registered" in outputs.log


def test_unreachable_registry_fails_step(run_component, lifecycle) -> None:
    """Unreachable registry fails the step."""
    with pytest.raises(RuntimeError, match=r"http://127\.0\.0\.1:9: no answer"):
        run_component(
            register_model,
            {"bundle": (dsl.Model, lifecycle.bundle)},
            model_name="digits",
            registry="http://127.0.0.1:9",
        )
