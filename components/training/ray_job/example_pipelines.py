"""Example pipeline for ray_job."""

from kfp import dsl


@dsl.pipeline(name="ray-job-example")
def example_pipeline(epochs: int = 5):
    """Train on two of Ray's workers.

    Args:
        epochs: Passes over the training split.
    """
    from kfp_mindspore.components import load_dataset, ray_job

    data = load_dataset(name="digits")
    ray_job(
        dataset=data.outputs["dataset"],
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": epochs, "seed": 1},
        workers=2,
    )
