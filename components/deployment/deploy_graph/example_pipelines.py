"""Example pipeline for deploy_graph."""

from kfp import dsl


@dsl.pipeline(name="deploy-graph-example")
def example_pipeline(namespace: str = "default"):
    """Split the requests between two existing services.

    Args:
        namespace: The services' namespace.
    """
    from kfp_mindspore.components import deploy_graph

    deploy_graph(
        graph_name="digits-graph",
        services=["digits-a", "digits-b"],
        router="Splitter",
        weights=[90, 10],
        namespace=namespace,
    ).set_caching_options(False)
