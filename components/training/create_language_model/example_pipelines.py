"""Example pipeline for create_language_model."""

from kfp import dsl


@dsl.pipeline(name="create-language-model-example")
def example_pipeline(data: str = "new_testament"):
    """Train a small language model from scratch."""
    from kfp_mindspore.components import create_language_model, finetune_language_model

    model = create_language_model(data=data).outputs["model"]
    finetune_language_model(model=model, data=data, lora_rank=0, length=64)
