"""Two models behind one address: two services and KServe's InferenceGraph over them."""

from typing import List

from kfp import dsl


@dsl.pipeline(
    name="two-models",
    description="Deploy two model bundles as services and an InferenceGraph over both: an ensemble that returns both "
    "responses, or a splitter that sends each request to one of them.",
)
def two_models(
    first: str,
    second: str,
    first_name: str = "digits-a",
    second_name: str = "digits-b",
    graph_name: str = "digits-graph",
    router: str = "Ensemble",
    weights: List[int] = [],
    namespace: str = "",
    service_account: str = "",
):
    """Deploy two model bundles and an InferenceGraph over both.

    A local run deploys both services and no graph: this machine has no router.

    Args:
        first: The first model bundle's URI; a directory in a local run.
        second: The second model bundle's URI.
        first_name: Name for the first service and for the model in its URLs.
        second_name: The second service's name.
        graph_name: Graph name.
        router: `Ensemble` or `Splitter`.
        weights: Request percentage for each service with `Splitter`; default equal ones.
        namespace: Namespace for the services and the graph; default the steps'.
        service_account: Service account for the services' pods, with the model store's credentials.
    """
    from kfp_mindspore.components import deploy_graph, deploy_kserve

    names = []
    for uri, name in ((first, first_name), (second, second_name)):
        deployment = deploy_kserve(
            bundle=dsl.importer(artifact_uri=uri, artifact_class=dsl.Model).output,
            service_name=name,
            namespace=namespace,
            service_account=service_account,
        ).set_caching_options(False)
        names.append(deployment.outputs["name"])
    deploy_graph(
        graph_name=graph_name, services=names, router=router, weights=weights, namespace=namespace
    ).set_caching_options(False)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(two_models, package_path=__file__.replace(".py", ".yaml"))
