"""Example pipeline for smoke_test."""

from kfp import dsl


@dsl.pipeline(name="smoke-test-example")
def example_pipeline(model: str):
    """Deploy a model bundle and test its service.

    Args:
        model: A model bundle's URI.
    """
    from kfp_mindspore.components import deploy_kserve, smoke_test

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    deployment = deploy_kserve(bundle=bundle, service_name="digits").set_caching_options(False)
    smoke_test(bundle=bundle, url=deployment.outputs["url"], model_name=deployment.outputs["name"]).set_caching_options(
        False
    )
