"""Example pipeline for load_dataset."""

from kfp import dsl


@dsl.pipeline(name="load-dataset-example")
def example_pipeline(uri: str = "s3://bucket/sales.csv"):
    """Load a table from a URI; the latest rows are the test split.

    Args:
        uri: The table's path or URI.
    """
    from kfp_mindspore.components import load_dataset

    load_dataset(name=uri, target=["price"], split="time:day", missing="mean")
