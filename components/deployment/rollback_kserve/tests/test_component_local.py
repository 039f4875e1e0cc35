import pytest

pytest_plugins = ["kfp_mindspore.testing"]

# A rollback of a live service is tested with deploy_kserve.


def test_missing_service_fails_step(run_component) -> None:
    """Missing service fails the step."""
    from kfp_mindspore.components import rollback_kserve

    with pytest.raises(RuntimeError, match="service digits does not exist in namespace default"):
        run_component(rollback_kserve, service_name="digits")
