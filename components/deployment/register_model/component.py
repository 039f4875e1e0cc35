"""Component that registers a model bundle in Kubeflow's Model Registry."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
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
    """Register the URI of a model bundle as a version of a model in Kubeflow's Model Registry.

    A repeated registration of the same bundle changes nothing. A local run without a registry registers nothing and
    has empty outputs. The step's image needs the extra `registry` of this package.

    Args:
        bundle: The model bundle; its URI is registered, its files stay where they are.
        model_name: Name of the registered model, created if it does not exist.
        registry: Address of the registry, such as http://model-registry-service.kubeflow.svc.cluster.local:8080.
        version: Name of the version; default the first 12 hexadecimal digits of model.mindir's sha256.
        author: Author of the version; default `kfp-mindspore`.
        description: Description of the version.
        service_account_name: Service account with access to the bundle's URI.
        properties: Further custom properties of the version by name, texts and numbers.

    Returns:
        model_id: ID of the registered model.
        version_id: ID of the version.
        version: Name of the version.
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
