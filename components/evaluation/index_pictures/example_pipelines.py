"""Example pipeline for index_pictures."""

from kfp import dsl


@dsl.pipeline(name="index-pictures-example")
def example_pipeline(source: str = "s3://models/clip-vit-base-patch32", pictures: str = "s3://photos/2026"):
    """Import a published model and embed a folder's pictures."""
    from kfp_mindspore.components import import_vision_model, index_pictures

    index_pictures(model=import_vision_model(source=source).outputs["model"], source=pictures)
