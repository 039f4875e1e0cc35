"""Example pipeline for compress_model."""

from kfp import dsl


@dsl.pipeline(name="compress-model-example")
def example_pipeline():
    """Train a network, cut half of its parameters and export it."""
    from kfp_mindspore.components import compress_model, export_mindir, load_dataset, train_msjob

    dataset = load_dataset(name="digits").outputs["dataset"]
    training = train_msjob(dataset=dataset, command=["python", "-m", "kfp_mindspore.workloads.digits.train"])
    small = compress_model(model=training.outputs["model"], dataset=dataset, pruned=0.5)
    export_mindir(model=small.outputs["compressed"], dataset=dataset)
