"""Example pipeline for compare_models."""

from kfp import dsl


@dsl.pipeline(name="compare-models-example")
def example_pipeline(model: str):
    """Compare a model bundle with the model that serves, and deploy it if it is better.

    Args:
        model: A model bundle's URI.
    """
    from kfp_mindspore.components import compare_models, deploy_kserve, load_dataset

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    data = load_dataset(name="digits")
    comparison = compare_models(
        candidate=bundle, dataset=data.outputs["dataset"], service_name="digits", margin=0.01
    ).set_caching_options(False)
    deploy_kserve(bundle=bundle, service_name="digits", gate=comparison.outputs["better"]).set_caching_options(False)
