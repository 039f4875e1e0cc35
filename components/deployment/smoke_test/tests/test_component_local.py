import pytest
from kfp import dsl

from kfp_mindspore.components.deployment.smoke_test import smoke_test


@pytest.mark.mindspore
def test_live_service_answers_as_verified(run_component, lifecycle) -> None:
    from kfp_mindspore.inference import InferenceClient, Service

    client = InferenceClient()
    try:
        status = client.deploy(Service("smoke", lifecycle.bundle))
        outputs = run_component(
            smoke_test, {"bundle": (dsl.Model, lifecycle.bundle)}, url=status.url, model_name="smoke"
        )
        assert outputs.parameters["samples"] == 32
        assert outputs.parameters["max_abs_diff"] <= 1e-5
        assert outputs.parameters["prediction"] in map(str, range(10))
        assert outputs.parameters["label"] in map(str, range(10))
    finally:
        for service in client.list():
            client.delete(service.name)


def test_dead_service_fails_the_step(run_component, lifecycle) -> None:
    with pytest.raises(RuntimeError, match=r"http://127\.0\.0\.1:9/.*: no answer"):
        run_component(
            smoke_test, {"bundle": (dsl.Model, lifecycle.bundle)}, url="http://127.0.0.1:9", model_name="smoke"
        )
