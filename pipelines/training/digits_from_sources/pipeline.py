"""The digits lifecycle with an image that is built from the user's sources in the first step."""

from typing import List

from kfp import dsl


@dsl.pipeline(
    name="digits-from-sources",
    description="Build an image of training sources over the steps' image and push it, then run the digits lifecycle "
    "with the image in the training workers.",
)
def digits_from_sources(
    files: dict,
    destination: str = "",
    base: str = "kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image",
    registry: dict = {},
    command: List[str] = ["python", "train.py"],
    epochs: int = 30,
    threshold: float = 0.95,
    workers: int = 1,
    service_name: str = "digits",
    namespace: str = "",
    service_account: str = "",
    queue: str = "",
):
    """Build an image with training sources and run the digits lifecycle with it.

    The network is imported by the export step too: it is in the base image, such as
    `kfp_mindspore.workloads.digits.network:LeNet5`. A local run needs no destination and builds nothing: its jobs run
    the command on this machine.

    Args:
        files: The image's sources, text by path, such as {"train.py": "..."}.
        destination: Repository to push to, `host/name`; required on a cluster.
        base: Base image; default the steps' image.
        registry: How registries are reached, see `build_image`.
        command: The training workers' command; `--epochs` is appended.
        epochs: Passes over the training split.
        threshold: Minimum accuracy on the test split for deployment, 0 to 1.
        workers: Training worker count.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
        queue: The job's Kueue queue, a LocalQueue in its namespace; ignored on this machine.
    """
    from kfp_mindspore.components import build_image, train_msjob
    from kfp_mindspore.pipelines.shared.training import train_and_deploy

    built = build_image(files=files, destination=destination, base=base, registry=registry).set_caching_options(False)
    image, hyperparameters = built.outputs["image"], {"epochs": epochs}
    training = {"command": command, "hyperparameters": hyperparameters, "image": image}
    training |= {"workers": workers, "queue": queue}
    data = {"name": "digits"}
    train_and_deploy(train_msjob, data, training, threshold, service_name, namespace, service_account)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(digits_from_sources, package_path=__file__.replace(".py", ".yaml"))
