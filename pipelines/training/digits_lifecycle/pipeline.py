"""The digits lifecycle: train, export, evaluate, deploy if accurate enough, smoke test."""

from kfp import dsl


@dsl.pipeline(
    name="digits-lifecycle",
    description="Train LeNet-5 on scikit-learn's digits as an MSJob, export it to MindIR, evaluate it on held-out "
    "images and, if its accuracy reaches the threshold, deploy it with KServe's protocols and test the service.",
)
def digits_lifecycle(
    epochs: int = 30,
    threshold: float = 0.95,
    seed: int = 42,
    workers: int = 1,
    batch_size: int = 32,
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
    smoke_samples: int = 32,
    queue: str = "",
):
    """Train, evaluate and serve a digit classifier.

    Args:
        epochs: Passes over the training split.
        threshold: Minimum accuracy on the test split for deployment, 0 to 1.
        seed: Seed for the initial parameters and the sample order; it does not change the split.
        workers: Training worker count.
        batch_size: Samples per step over all workers.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
        smoke_samples: Held-out samples that the smoke test sends by each protocol.
        queue: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
    """
    from kfp_mindspore.components import train_msjob
    from kfp_mindspore.pipelines.shared.training import get_command, train_and_deploy

    data = {"name": "digits"}
    hyperparameters = {"epochs": epochs, "batch_size": batch_size, "seed": seed}
    job = {"workers": workers, "queue": queue}
    training = {"command": get_command("digits"), "hyperparameters": hyperparameters, **job}
    smoke = {"smoke_samples": smoke_samples}
    train_and_deploy(train_msjob, data, training, threshold, service_name, namespace, service_account, **smoke)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(digits_lifecycle, package_path=__file__.replace(".py", ".yaml"))
