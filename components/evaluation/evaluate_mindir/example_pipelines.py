"""Example pipeline for evaluate_mindir."""

from kfp import dsl


@dsl.pipeline(name="evaluate-mindir-example")
def example_pipeline(model: str):
    """Evaluate a model bundle and fail no step: the output `passed` is the result.

    Args:
        model: A model bundle's URI.
    """
    from kfp_mindspore.components import evaluate_mindir, load_dataset

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    data = load_dataset(name="digits")
    evaluate_mindir(bundle=bundle, dataset=data.outputs["dataset"], metric="accuracy", threshold=0.95)
