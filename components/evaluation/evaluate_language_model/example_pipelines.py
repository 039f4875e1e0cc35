"""Example pipeline for evaluate_language_model."""

from kfp import dsl


@dsl.pipeline(name="evaluate-language-model-example")
def example_pipeline():
    """Fine-tune a small published model, and compare it with its base on held-out pairs."""
    from kfp_mindspore.components import evaluate_language_model, finetune_language_model, import_language_model

    base = import_language_model(source="smollm2").outputs["model"]
    tuning = finetune_language_model(model=base, data="chatterbot", max_examples=400)
    evaluate_language_model(
        model=tuning.outputs["tuned"],
        base=base,
        dataset=tuning.outputs["held_out_examples"],
        min_improvement=0.2,
    )
