"""Example pipeline for import_language_model."""

from kfp import dsl


@dsl.pipeline(name="import-language-model-example")
def example_pipeline():
    """Import a small published model and deploy it."""
    from kfp_mindspore.components import deploy_kserve, import_language_model

    model = import_language_model(source="smollm2").outputs["model"]
    deploy_kserve(bundle=model, service_name="chat")
