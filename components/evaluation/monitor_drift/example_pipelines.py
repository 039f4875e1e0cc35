"""Example pipeline for monitor_drift."""

from kfp import dsl


@dsl.pipeline(name="monitor-drift-example")
def example_pipeline(model: str, log: str):
    """Compare the last day of a service's requests with its model's training data.

    Args:
        model: A model bundle's URI.
        log: The log's URI.
    """
    from kfp_mindspore.components import monitor_drift

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    monitor_drift(model=bundle, log=log, window="24h").set_caching_options(False)
