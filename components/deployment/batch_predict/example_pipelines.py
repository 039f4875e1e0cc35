"""Example pipeline for batch_predict."""

from typing import List

from kfp import dsl


@dsl.pipeline(name="batch-predict-example")
def example_pipeline(model: str, shards: List[str] = ["1/4", "2/4", "3/4", "4/4"]):
    """Compute predictions for a test split in four parallel steps.

    Args:
        model: A model bundle's URI.
        shards: One shard per step.
    """
    from kfp_mindspore.components import batch_predict, load_dataset

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    data = load_dataset(name="digits")
    with dsl.ParallelFor(shards) as shard:
        batch_predict(bundle=bundle, dataset=data.outputs["dataset"], shard=shard)
