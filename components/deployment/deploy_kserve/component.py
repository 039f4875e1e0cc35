"""Deploys a model bundle and waits until it answers."""

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
    """Deploy a model bundle as a service of this name, or its new version, and wait until it is ready.

    Switch caching off for this step in a pipeline (`task.set_caching_options(False)`): a cached answer would name a
    service that is no longer there.

    Args:
        bundle: The model bundle to serve.
        service_name: Name of the service and of the model in its URLs, a DNS label.
        namespace: Namespace of the service; by default that of the step.
        replicas: Number of replicas.
        resources: Kubernetes resource requirements of each replica: {"requests": {…}, "limits": {…}}.
        wait_seconds: Seconds to wait until the service is ready.

    Returns:
        url: Address of the service over HTTP; the model is at `{url}/v1/models/{name}:predict`.
        grpc_url: Address of the service over gRPC (V2), host and port.
        name: Name of the service and of the model in its URLs.
    """
    from kfp_mindspore.inference import InferenceClient, Service
    from kfp_mindspore.settings import get_namespace
    from kfp_mindspore.steps.artifacts import record_deployment

    namespace = namespace or get_namespace() or "default"
    service = Service(service_name, bundle.path, replicas=replicas, resources=resources, namespace=namespace)
    status = InferenceClient().deploy(service, wait_seconds=wait_seconds)
    return record_deployment(status)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(deploy_kserve, package_path=__file__.replace(".py", ".yaml"))
