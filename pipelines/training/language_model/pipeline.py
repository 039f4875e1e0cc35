"""Train a language model from scratch on texts, evaluate it by its perplexity, deploy it."""

from kfp import dsl


@dsl.pipeline(
    name="language-model",
    description="Create an untrained decoder with a subword tokenizer trained on the training texts, train it on them, "
    "compare the perplexity of held-out texts with the untrained one's and, if it is lower by enough, deploy it, which "
    "any client of the OpenAI protocol can use.",
)
def language_model(
    data: str = "new_testament",
    vocabulary: int = 1000,
    width: int = 128,
    layers: int = 2,
    length: int = 64,
    epochs: int = 3,
    learning_rate: float = 0.003,
    batch_size: int = 8,
    held_out: float = 0.1,
    min_improvement: float = 0.96,
    seed: int = 0,
    service_name: str = "language-model",
    namespace: str = "",
    service_account: str = "",
):
    """Train a language model from scratch on texts, and serve it if it predicts held-out texts well enough.

    The tokenizer and the network are trained on the same texts; the held-out ones are only evaluated.

    Args:
        data: Path or URI of a text per line (*.txt) or of JSON lines with `text`, or `new_testament`.
        vocabulary: Most tokens in the tokenizer.
        width: Hidden size; a multiple of 8.
        layers: Blocks.
        length: Tokens per window, which holds one or several texts.
        epochs: Passes over the training texts.
        learning_rate: Peak learning rate.
        batch_size: Windows per step.
        held_out: Fraction of texts that is evaluated and not trained on.
        min_improvement: Least improvement over the untrained network, relative to its perplexity.
        seed: Seed for the weights and the order.
        service_name: Name for the service and for the model in requests.
        namespace: Service namespace; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import create_language_model
    from kfp_mindspore.pipelines.shared.tuning import tune_and_deploy

    base = create_language_model(
        data=data, vocabulary=vocabulary, width=width, layers=layers, held_out=held_out, seed=seed
    ).outputs["model"]
    examples = {"data": data, "length": length, "held_out": held_out, "seed": seed}
    steps = {"epochs": epochs, "learning_rate": learning_rate, "batch_size": batch_size, "accumulate": 1}
    tuning = {**examples, **steps, "lora_rank": 0}
    gate = {"min_improvement": min_improvement}
    tune_and_deploy(base, tuning, gate, service_name, namespace, service_account, smoke_samples=2)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(language_model, package_path=__file__.replace(".py", ".yaml"))
