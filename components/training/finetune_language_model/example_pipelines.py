"""Example pipeline for finetune_language_model."""

from kfp import dsl


@dsl.pipeline(name="finetune-language-model-example")
def example_pipeline():
    """Import a small published model and fine-tune it on English pairs."""
    from kfp_mindspore.components import finetune_language_model, import_language_model

    model = import_language_model(source="smollm2").outputs["model"]
    finetune_language_model(model=model, data="chatterbot", max_examples=400)
