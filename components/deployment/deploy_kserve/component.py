"""Component that deploys a model bundle as a service."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def deploy_kserve(
    bundle: Input[Model],
    service_name: str,
    namespace: str = "",
    replicas: int = 1,
    resources: dict = {},
    wait_seconds: int = 120,
) -> NamedTuple("Outputs", [("url", str), ("grpc_url", str), ("name", str)]):
    """Deploy a model bundle as a service, or as a new version of it, and wait until it is ready.

    Disable caching of this step in a pipeline (`task.set_caching_options(False)`): cached outputs may name a deleted
    service.

    Args:
        bundle: The model bundle to serve.
        service_name: Name of the service and of the model in its URLs, a DNS label.
        namespace: Namespace of the service; default the step's.
        replicas: Number of replicas.
        resources: Kubernetes resource requirements of each replica: {"requests": {…}, "limits": {…}}.
        wait_seconds: Seconds to wait until the service is ready.

    Returns:
        url: HTTP URL of the service; V1 predictions are at `{url}/v1/models/{name}:predict`.
        grpc_url: gRPC address (V2) of the service, host and port.
        name: Name of the service and of the model in its URLs.
    """
    from kfp_mindspore.steps.deploy import deploy_model

    return deploy_model(
        bundle,
        service_name,
        namespace=namespace,
        replicas=replicas,
        resources=resources,
        wait_seconds=wait_seconds,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(deploy_kserve, package_path=__file__.replace(".py", ".yaml"))
