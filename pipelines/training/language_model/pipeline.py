"""Language model: train on a text's characters, export, evaluate by perplexity, deploy."""

from kfp import dsl


@dsl.pipeline(
    name="language-model",
    description="Train a causal transformer on windows of characters, evaluate it by its perplexity on the end of "
    "the text, deploy it if it is at most the threshold, and test the service, which returns the next "
    "character.",
)
def language_model(
    dataset: str = "new_testament",
    length: int = 64,
    epochs: int = 1,
    learning_rate: float = 0.002,
    threshold: float = 8.0,
    seed: int = 42,
    service_name: str = "language-model",
    namespace: str = "",
    service_account: str = "",
):
    """Train a character language model and serve it.

    The text is split in its order: its end is the test split.

    Args:
        dataset: `new_testament`, or path or URI of a text file (UTF-8).
        length: Characters of a window: what the network has seen when it predicts the next one, at most.
        epochs: Passes over the training split.
        learning_rate: Step size of the optimizer.
        threshold: Maximum perplexity on the test split for deployment, at least 1.
        seed: Seed of the initial parameters and the order of the windows.
        service_name: Name of the service and of the model in its URLs.
        namespace: Namespace of the job and the service; default the steps'.
        service_account: Service account of the service's pods, with the credentials of the model's store.
    """
    from kfp_mindspore.pipelines.shared.training import train_and_deploy

    train_and_deploy(
        "language_model",
        {"name": dataset, "length": length},
        {"epochs": epochs, "learning_rate": learning_rate, "seed": seed},
        metric="perplexity",
        threshold=threshold,
        service_name=service_name,
        namespace=namespace,
        service_account=service_account,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(language_model, package_path=__file__.replace(".py", ".yaml"))
