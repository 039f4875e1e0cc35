"""Example pipeline for export_mindir."""

from kfp import dsl


@dsl.pipeline(name="export-mindir-example")
def example_pipeline():
    """Train a network and export it with a fixed batch size."""
    from kfp_mindspore.components import export_mindir, load_dataset, train_msjob

    data = load_dataset(name="digits")
    training = train_msjob(
        dataset=data.outputs["dataset"], command=["python", "-m", "kfp_mindspore.workloads.digits.train"]
    )
    export_mindir(model=training.outputs["model"], dataset=data.outputs["dataset"], batch=8)
