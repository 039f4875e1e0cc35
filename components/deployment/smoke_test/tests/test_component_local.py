import pytest
from kfp import dsl

from ..component import smoke_test

pytest_plugins = ["kfp_mindspore.testing"]

# A live service is tested with deploy_kserve.


def test_unreachable_service_fails_step(run_component, lifecycle) -> None:
    """Unreachable service fails the step."""
    with pytest.raises(RuntimeError, match=r"http://127\.0\.0\.1:9/.*: no "):
        run_component(
            smoke_test, {"bundle": (dsl.Model, lifecycle.bundle)}, url="http://127.0.0.1:9", model_name="smoke"
        )
