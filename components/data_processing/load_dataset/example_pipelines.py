"""Example pipeline of load_dataset."""

from kfp import dsl


@dsl.pipeline(name="load-dataset-example")
def example_pipeline(uri: str = "digits"):
    """Load a dataset from a URI with another split.

    Args:
        uri: Name, path or URI of the dataset.
    """
    from kfp_mindspore.components import load_dataset

    load_dataset(name=uri, validation_fraction=0.1, test_fraction=0.1)
