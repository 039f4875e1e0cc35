"""The step that deploys an InferenceGraph over services."""

from __future__ import annotations

from collections.abc import Sequence

from kfp_mindspore.settings import LOCAL, get_backend_name


def deploy_service_graph(
    graph_name: str,
    services: Sequence[str],
    *,
    router: str = "Ensemble",
    weights: Sequence[int] = (),
    namespace: str = "",
    wait_seconds: float = 120,
) -> str:
    """Deploy an InferenceGraph over existing services and return the address; a local run only checks it.

    Args:
        graph_name: Graph name.
        services: Service names.
        router: `Ensemble` or `Splitter`.
        weights: The router Splitter's percentages; empty for equal ones.
        namespace: Namespace for the services and the graph; empty for the step's.
        wait_seconds: Seconds to wait until the graph's router is ready.

    Returns:
        The graph's HTTP URL; empty in a local run, which has no router.

    Raises:
        NotFoundError: A service does not exist.
        ValidationError: An argument is invalid.
        ProcessFailedError: The router's pod fails.
        WaitTimeoutError: The router was not ready in time.
    """
    from kfp_mindspore.inference import InferenceClient
    from kfp_mindspore.inference.graph import build_graph, deploy_graph
    from kfp_mindspore.kube.cluster import Cluster

    client = InferenceClient(namespace=namespace)
    found = [client.get(name) for name in services]
    # A pipeline's list parameters hold floats.
    document = build_graph(graph_name, found, router=router, weights=[int(weight) for weight in weights])
    if get_backend_name() == LOCAL:
        addresses = ", ".join(f"{service.name} at {service.url}" for service in found)
        print(f"graph {graph_name}: not deployed, this machine has no InferenceGraph router; services: {addresses}")
        return ""
    url = deploy_graph(Cluster(), document, wait_seconds=wait_seconds)
    print(f"graph {graph_name}: {router} of {', '.join(services)} at {url}")
    return url
