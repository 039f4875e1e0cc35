"""Example pipeline for train_msjob."""

from kfp import dsl


@dsl.pipeline(name="train-msjob-example")
def example_pipeline(epochs: int = 5):
    """Train on two workers and name the job's arguments.

    Args:
        epochs: Passes over the training split.
    """
    from kfp_mindspore.components import load_dataset, train_msjob

    data = load_dataset(name="digits")
    train_msjob(
        dataset=data.outputs["dataset"],
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": epochs, "seed": 1},
        workers=2,
    )
