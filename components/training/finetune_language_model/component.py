"""Component that fine-tunes a language model."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def finetune_language_model(
    model: Input[Model],
    tuned: Output[Model],
    adapter: Output[Model],
    held_out_examples: Output[Dataset],
    metrics: Output[Metrics],
    curves: Output[HTML],
    data: str = "",
    dataset: Input[Dataset] = None,
    epochs: int = 2,
    learning_rate: float = 1e-3,
    batch_size: int = 8,
    accumulate: int = 4,
    length: int = 128,
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    lora_dropout: float = 0.0,
    lora_attn_modules: list[str] = ["q_proj", "v_proj"],
    keep: str = "best",
    held_out: float = 0.1,
    max_examples: int = 0,
    chat: bool = True,
    seed: int = 0,
) -> NamedTuple("Outputs", [("perplexity", float), ("best_epoch", int), ("examples", int)]):
    """Fine-tune a language model on examples: low-rank adapters (LoRA), or all weights.

    Each line of the examples is a JSON object with `prompt` and `completion`, with `messages`, or with `text`. The loss
    counts the answers only. The step's image needs kfp-mindspore[lm].

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[lm,pipelines,train].

    Args:
        model: The base bundle, import_language_model's output.
        tuned: The tuned bundle, the adapter merged.
        adapter: The adapter in peft's format; empty when all weights are trained, and for GPT-2.
        held_out_examples: The examples that were not trained on, for evaluate_language_model.
        metrics: Held-out loss and perplexity, counts and seconds.
        curves: A page with the losses by epoch.
        data: Path or URI of the examples, `chatterbot` (fetched by pip) or `rewrites` (generated); empty for `dataset`.
        dataset: An artifact with the examples, a file or a directory with one *.jsonl; optional.
        epochs: Passes over the training examples.
        learning_rate: Peak learning rate (Adam, cosine schedule).
        batch_size: Windows per step.
        accumulate: Parts that each batch is computed in: less memory, the same result.
        length: Tokens per window, which holds one or several examples.
        lora_rank: The adapter updates' rank; 0 trains all weights, as an encoder-decoder needs.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        lora_dropout: Fraction of an update's inputs that is set to 0 in training.
        lora_attn_modules: Projections with an update: q_proj, k_proj, v_proj, output_proj.
        keep: The weights to keep: the `best` epoch's, by the loss on held-out examples, or the `last` one's.
        held_out: Fraction of examples that is not trained on, chosen by the prompt's hash.
        max_examples: Training examples to use; 0 for all.
        chat: Whether a prompt and its completion are chat messages, if the model has a chat template.
        seed: Seed for the adapter's initial values and the order.

    Returns:
        perplexity: Of the held-out answers, with the final weights.
        best_epoch: Epoch of the final weights.
        examples: How many examples were trained on.
    """
    from kfp_mindspore.lm.options import FinetuneOptions
    from kfp_mindspore.steps.language_model import finetune_model

    options = FinetuneOptions(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        accumulate=accumulate,
        length=length,
        lora_rank=lora_rank,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        lora_attn_modules=lora_attn_modules,
        keep=keep,
        held_out=held_out,
        max_examples=max_examples,
        chat=chat,
        seed=seed,
    )
    return finetune_model(
        model, tuned, adapter, held_out_examples, metrics, curves, options, data=data, dataset=dataset
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(finetune_language_model, package_path=__file__.replace(".py", ".yaml"))
