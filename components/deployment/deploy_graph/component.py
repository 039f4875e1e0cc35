"""Component that deploys an InferenceGraph over services."""

from typing import List, NamedTuple

from kfp import dsl


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def deploy_graph(
    graph_name: str,
    services: List[str],
    router: str = "Ensemble",
    weights: List[int] = [],
    namespace: str = "",
    wait_seconds: int = 120,
) -> NamedTuple("Outputs", [("url", str)]):
    """Deploy KServe's InferenceGraph over existing services and wait until its router is ready.

    The router `Ensemble` sends each request to all services and returns their responses by name; `Splitter` sends it to
    one of them. Requests have a V1 or V2 body; the router ignores their path. Local services have no router: a local
    run checks the arguments and returns an empty address.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[kubernetes,pipelines].

    Args:
        graph_name: Graph name, a DNS label that differs from the services'.
        services: At least two service names.
        router: `Ensemble` or `Splitter`.
        weights: Percentage of requests for each service with `Splitter`, 100 in total; default equal ones.
        namespace: Namespace for the services and the graph; default the step's.
        wait_seconds: Seconds to wait until the graph's router is ready.

    Returns:
        url: The graph's HTTP URL; empty in a local run.
    """
    from kfp_mindspore.steps.deployment.graph import deploy_service_graph

    url = deploy_service_graph(
        graph_name, services, router=router, weights=weights, namespace=namespace, wait_seconds=wait_seconds
    )
    return (url,)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(deploy_graph, package_path=__file__.replace(".py", ".yaml"))
