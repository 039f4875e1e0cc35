"""A YOLOS detector: train on pictures with boxes, export, evaluate, deploy if precise enough."""

from kfp import dsl


@dsl.pipeline(
    name="detection",
    description="Train a small YOLOS detector on pictures with boxes as an MSJob, export it to MindIR, evaluate its "
    "average precision on test pictures and, if it reaches the threshold, deploy it: a picture in, boxes out.",
)
def detection(
    dataset: str = "scenes",
    image_size: int = 64,
    limit: int = 0,
    epochs: int = 60,
    learning_rate: float = 0.001,
    batch_size: int = 16,
    initial: str = "",
    threshold: float = 0.5,
    seed: int = 42,
    service_name: str = "detection",
    namespace: str = "",
    service_account: str = "",
):
    """Train, evaluate and serve a detector.

    Args:
        dataset: Name, path or URI of pictures with COCO, YOLO or Pascal VOC boxes.
        image_size: Height and width that pictures are stretched to, a multiple of 8.
        limit: How many pictures to keep in all; 0 for all.
        epochs: Passes over the training split.
        learning_rate: Largest learning rate.
        batch_size: Pictures per optimizer step.
        initial: Path or URI of a bundle or checkpoint to start from, such as an imported detector; empty for none.
        threshold: Minimum `map50`, the average precision at an overlap of 0.5, for deployment, 0 to 1.
        seed: Seed for the initial parameters and the sample order; not for the split.
        service_name: Name for the service and for the model in its URLs.
        namespace: Namespace for the job and the service; default the steps'.
        service_account: Service account for the service's pods, with the model store's credentials.
    """
    from kfp_mindspore.components import train_msjob
    from kfp_mindspore.pipelines.shared.training import get_command, train_and_deploy

    data = {"name": dataset, "preprocessing": "imagenet", "image_size": [image_size], "limit": limit}
    training = {
        "command": get_command("detection"),
        "hyperparameters": {
            "epochs": epochs,
            "learning_rate": learning_rate,
            "batch_size": batch_size,
            "initial": initial,
            "seed": seed,
        },
    }
    train_and_deploy(train_msjob, data, training, threshold, service_name, namespace, service_account, metric="map50")


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(detection, package_path=__file__.replace(".py", ".yaml"))
