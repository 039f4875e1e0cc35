"""Component that registers a model bundle in Kubeflow's Model Registry."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def register_model(
    bundle: Input[Model],
    model_name: str,
    registry: str = "",
    version: str = "",
    author: str = "",
    description: str = "",
    service_account_name: str = "",
    properties: dict = {},
) -> NamedTuple("Outputs", [("model_id", str), ("version_id", str), ("version", str)]):
    """Register a model bundle's URI as a model version in Kubeflow's Model Registry.

    Registering the same bundle again changes nothing. A local run without a registry registers nothing and has empty
    outputs. The step's image needs this package's extra `registry`.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,registry].

    Args:
        bundle: The model bundle; its URI is registered, its files stay where they are.
        model_name: The registered model's name, created if it does not exist.
        registry: Registry address, such as http://model-registry-service.kubeflow.svc.cluster.local:8080.
        version: Version name; default the first 12 hexadecimal digits of the model's sha256.
        author: The version's author; default `kfp-mindspore`.
        description: The version's description.
        service_account_name: Service account with access to the bundle's URI.
        properties: The version's further custom properties by name, texts and numbers.

    Returns:
        model_id: The registered model's ID.
        version_id: The version's ID.
        version: The version's name.
    """
    from kfp_mindspore.steps.deployment.register import register_bundle

    return register_bundle(
        bundle,
        model_name,
        registry=registry,
        version=version,
        author=author,
        description=description,
        service_account_name=service_account_name,
        properties=properties,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(register_model, package_path=__file__.replace(".py", ".yaml"))
