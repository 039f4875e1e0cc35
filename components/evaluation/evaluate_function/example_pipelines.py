"""Example pipeline for evaluate_function."""

from kfp import dsl


@dsl.pipeline(name="evaluate-function-example")
def example_pipeline(model: str):
    """Play games with a model bundle; the output `passed` is whether it won at least 90 % of them.

    Args:
        model: A model bundle's URI.
    """
    from kfp_mindspore.components import evaluate_function

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
    evaluate_function(
        bundle=bundle,
        function="kfp_mindspore.workloads.connect4.arena:play_arena",
        arguments={"games": 100},
        threshold=0.9,
    )
