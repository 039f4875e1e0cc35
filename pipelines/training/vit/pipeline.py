"""A Vision Transformer: train on images, export, evaluate, deploy if accurate enough."""

from kfp import dsl


@dsl.pipeline(
    name="vit",
    description="Train a small Vision Transformer on a part of Fashion-MNIST as an MSJob, export it to MindIR, "
    "evaluate it on test images and, if its accuracy reaches the threshold, deploy it: raw pixels in, "
    "label out.",
)
def vit(
    dataset: str = "fashion_mnist",
    limit: int = 20000,
    epochs: int = 10,
    learning_rate: float = 0.003,
    threshold: float = 0.84,
    seed: int = 42,
    service_name: str = "vit",
    namespace: str = "",
    service_account: str = "",
):
    """Train, evaluate and serve a Vision Transformer.

    Args:
        dataset: Name, path or URI of a dataset of square images of shape (channels, size, size) with labels.
        limit: Number of images to keep of each split of the dataset; 0 for all.
        epochs: Passes over the training split.
        learning_rate: Largest learning rate.
        threshold: Minimum accuracy on the test split for deployment, 0 to 1.
        seed: Seed of the initial parameters and the order of the samples; not of the split.
        service_name: Name of the service and of the model in its URLs.
        namespace: Namespace of the job and the service; default the steps'.
        service_account: Service account of the service's pods, with the credentials of the model's store.
    """
    from kfp_mindspore.pipelines.shared.training import train_and_deploy

    train_and_deploy(
        "vit",
        {"name": dataset, "limit": limit},
        {"epochs": epochs, "learning_rate": learning_rate, "seed": seed},
        metric="accuracy",
        threshold=threshold,
        service_name=service_name,
        namespace=namespace,
        service_account=service_account,
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(vit, package_path=__file__.replace(".py", ".yaml"))
