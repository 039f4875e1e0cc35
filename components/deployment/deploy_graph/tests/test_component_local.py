import pytest

from ..component import deploy_graph

pytest_plugins = ["kfp_mindspore.testing"]


def test_missing_service_fails_step(run_component) -> None:
    """Missing service fails the step."""
    with pytest.raises(RuntimeError, match="service missing does not exist"):
        run_component(deploy_graph, graph_name="both", services=["missing", "other"])
