"""Example pipeline of register_model."""

from kfp import dsl


@dsl.pipeline(name="register-model-example")
def example_pipeline(model: str, registry: str = "http://model-registry-service.kubeflow.svc.cluster.local:8080"):
    """Register a model bundle.

    Args:
        model: URI of a model bundle.
        registry: Address of Kubeflow's Model Registry.
    """
    from kfp_mindspore.components import register_model

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    register_model(bundle=bundle, model_name="digits", registry=registry)
