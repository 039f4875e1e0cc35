"""Example pipeline for import_vision_model."""

from kfp import dsl


@dsl.pipeline(name="import-vision-model-example")
def example_pipeline(source: str = "s3://models/clip-vit-base-patch32"):
    """Import a published model and deploy it."""
    from kfp_mindspore.components import deploy_kserve, import_vision_model

    model = import_vision_model(source=source).outputs["model"]
    deploy_kserve(bundle=model, service_name="clip")
