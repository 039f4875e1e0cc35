"""Example pipeline for select_samples."""

from kfp import dsl


@dsl.pipeline(name="select-samples-example")
def example_pipeline():
    """Train on 40 random samples and select 20 more by the model's score margin."""
    from kfp_mindspore.components import export_mindir, load_dataset, select_samples, train_msjob

    digits = load_dataset(name="digits").outputs["dataset"]
    first = select_samples(dataset=digits, strategy="random", count=40).outputs["selected"]
    training = train_msjob(dataset=first, command=["python", "-m", "kfp_mindspore.workloads.active_learning.train"])
    bundle = export_mindir(model=training.outputs["model"], dataset=first).outputs["bundle"]
    select_samples(dataset=first, bundle=bundle, strategy="margin", count=20)
