"""Example pipeline for register_model."""

from kfp import dsl


@dsl.pipeline(name="register-model-example")
def example_pipeline(model: str, registry: str = "http://model-registry-service.kubeflow.svc.cluster.local:8080"):
    """Register a model bundle.

    Args:
        model: A model bundle's URI.
        registry: Kubeflow's Model Registry address.
    """
    from kfp_mindspore.components import register_model

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    register_model(bundle=bundle, model_name="digits", registry=registry)
