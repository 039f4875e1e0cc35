"""Component that rolls a service back."""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def rollback_kserve(
    service_name: str,
    namespace: str = "",
    version: int = 0,
    wait_seconds: int = 120,
) -> NamedTuple("Outputs", [("url", str), ("model", str), ("version", int)]):
    """Remove a service's canary; without one, deploy the previous version's model again.

    Disable caching for this step in a pipeline (`task.set_caching_options(False)`). With `version` a retried step does
    nothing once another version serves.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[kubernetes,pipelines].

    Args:
        service_name: Service name.
        namespace: Service namespace; default the step's.
        version: The version to roll back, an output of `deploy_kserve`; no effect if another serves; 0 for any.
        wait_seconds: Seconds to wait until the version before serves.

    Returns:
        url: HTTP URL of the service.
        model: Directory or URI of the model that serves.
        version: Number of the version that serves.
    """
    from kfp_mindspore.steps.deployment.deploy import rollback_service

    return rollback_service(service_name, namespace=namespace, version=version, wait_seconds=wait_seconds)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(rollback_kserve, package_path=__file__.replace(".py", ".yaml"))
