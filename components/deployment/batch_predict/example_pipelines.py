"""Example pipeline of batch_predict."""

from typing import List

from kfp import dsl


@dsl.pipeline(name="batch-predict-example")
def example_pipeline(model: str, shards: List[int] = [0, 1, 2, 3]):
    """Compute predictions for a test split in four parallel steps.

    Args:
        model: URI of a model bundle.
        shards: One number per step.
    """
    from kfp_mindspore.components import batch_predict, load_dataset

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    data = load_dataset(name="digits")
    with dsl.ParallelFor(shards) as shard:
        batch_predict(bundle=bundle, dataset=data.outputs["dataset"], shard=shard, shards=shards)
