"""Train an encoder-decoder on text pairs, evaluate its answers, deploy it."""

from kfp import dsl


@dsl.pipeline(
    name="t5-rewrite",
    description="Train an encoder-decoder (T5) on pairs of texts, by default from scratch on dates and number words "
    "and their normal form, compare its answers to held-out prompts with the references and, if enough are exact, "
    "deploy it, which any client of the OpenAI protocol can use.",
)
def t5_rewrite(
    source: str = "rewriter",
    data: str = "rewrites",
    epochs: int = 12,
    learning_rate: float = 3e-3,
    batch_size: int = 64,
    length: int = 64,
    max_examples: int = 0,
    metric: str = "exact_match",
    min_improvement: float = 0.9,
    generated: int = 256,
    seed: int = 0,
    service_name: str = "rewriter",
    namespace: str = "",
    service_account: str = "",
):
    """Train an encoder-decoder on text pairs, and serve it if its answers to held-out prompts are exact.

    The untrained model and a model that copies its prompt have an exact match of 0.

    Args:
        source: Path or URI of a T5 in a Hugging Face directory, or `rewriter`, a small untrained one.
        data: Path or URI of JSON lines with prompt and completion, or `rewrites`, dates and numbers in words.
        epochs: Passes over the training examples.
        learning_rate: Peak learning rate.
        batch_size: Examples per step.
        length: Most tokens in a prompt, and in a completion; examples with more are left out.
        max_examples: Training examples to use; 0 for all.
        metric: The gate's metric: `perplexity`, `exact_match`, `rouge_l` or `valid_json`.
        min_improvement: Least improvement over the model before the training.
        generated: Held-out prompts that are answered.
        seed: Seed for the order.
        service_name: Name for the service and for the model in requests.
        namespace: Service namespace; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import import_language_model
    from kfp_mindspore.pipelines.shared.tuning import tune_and_deploy

    base = import_language_model(source=source).outputs["model"]
    examples = {"data": data, "length": length, "max_examples": max_examples, "seed": seed}
    steps = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "accumulate": 1}
    tuning = {**examples, **steps, "lora_rank": 0}
    answers = {"generated": generated, "max_tokens": length}
    gate = {"metric": metric, "min_improvement": min_improvement, **answers}
    tune_and_deploy(base, tuning, gate, service_name, namespace, service_account)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(t5_rewrite, package_path=__file__.replace(".py", ".yaml"))
