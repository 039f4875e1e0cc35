"""Example pipeline for finetune_dual_encoder."""

from kfp import dsl


@dsl.pipeline(name="finetune-dual-encoder-example")
def example_pipeline():
    """Train a new image tower for a published embedding model on drawn pictures."""
    from kfp_mindspore.components import finetune_dual_encoder, import_language_model

    model = import_language_model(source="minilm").outputs["model"]
    finetune_dual_encoder(model=model, data="drawings", length=16)
