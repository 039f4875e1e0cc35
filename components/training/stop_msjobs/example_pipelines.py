"""Example pipeline for stop_msjobs."""

from kfp import dsl


@dsl.pipeline(name="stop-msjobs-example")
def example_pipeline(epochs: int = 5):
    """Train, and end the job when the run is terminated.

    Args:
        epochs: Passes over the training split.
    """
    from kfp_mindspore.components import load_dataset, stop_msjobs, train_msjob

    with dsl.ExitHandler(stop_msjobs()):
        data = load_dataset(name="digits")
        train_msjob(
            dataset=data.outputs["dataset"],
            command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
            hyperparameters={"epochs": epochs},
        )
