"""Example pipeline for sweep_msjob."""

from kfp import dsl


@dsl.pipeline(name="sweep-msjob-example")
def example_pipeline(trials: int = 8):
    """Find the learning rate and export the best model.

    Args:
        trials: Trials in all.
    """
    from kfp_mindspore.components import export_mindir, load_dataset, sweep_msjob

    data = load_dataset(name="digits").outputs["dataset"]
    found = sweep_msjob(
        dataset=data,
        command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
        hyperparameters={"epochs": 5},
        space="{learning_rate: {low: 0.0001, high: 0.1, log: true}, batch_size: [16, 32, 64]}",
        objective="accuracy",
        trials=trials,
        parallel=2,
    )
    export_mindir(model=found.outputs["model"], dataset=data)
