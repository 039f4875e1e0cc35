"""Example pipeline for deploy_kserve."""

from kfp import dsl


@dsl.pipeline(name="deploy-kserve-example")
def example_pipeline(model: str):
    """Deploy a model bundle with resource requirements.

    Args:
        model: A model bundle's URI.
    """
    from kfp_mindspore.components import deploy_kserve

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    deploy_kserve(
        bundle=bundle, service_name="digits", resources={"requests": {"cpu": "500m", "memory": "1Gi"}}
    ).set_caching_options(False)
