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
        dataset: Name, path or URI of a dataset with labels and square images, (channels, size, size).
        limit: How many images to keep in each split; 0 for all.
        epochs: Passes over the training split.
        learning_rate: Largest learning rate.
        threshold: Minimum accuracy on the test split for deployment, 0 to 1.
        seed: Seed for the initial parameters and the sample order; not for the split.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import train_msjob
    from kfp_mindspore.pipelines.shared.training import get_command, train_and_deploy

    data = {"name": dataset, "limit": limit}
    hyperparameters = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed}
    training = {"command": get_command("vit"), "hyperparameters": hyperparameters}
    train_and_deploy(train_msjob, data, training, threshold, service_name, namespace, service_account)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(vit, package_path=__file__.replace(".py", ".yaml"))
