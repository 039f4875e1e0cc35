"""Example pipeline for select_best."""

from typing import List

from kfp import dsl


@dsl.pipeline(name="select-best-example")
def example_pipeline(rates: List[float] = [0.001, 0.01, 0.1]):
    """Train a model for each learning rate and keep the best one.

    Args:
        rates: Learning rates.
    """
    from kfp_mindspore.components import evaluate_mindir, export_mindir, load_dataset, select_best, train_msjob

    data = load_dataset(name="digits")
    with dsl.ParallelFor(rates) as rate:
        training = train_msjob(
            dataset=data.outputs["dataset"],
            command=["python", "-m", "kfp_mindspore.workloads.digits.train"],
            hyperparameters={"epochs": 5, "learning_rate": rate},
        )
        bundle = export_mindir(model=training.outputs["model"], dataset=data.outputs["dataset"])
        evaluation = evaluate_mindir(bundle=bundle.outputs["bundle"], dataset=data.outputs["dataset"])
    select_best(
        models=dsl.Collected(bundle.outputs["bundle"]),
        metrics=dsl.Collected(evaluation.outputs["metrics"]),
        metric="accuracy",
    )
