"""Component that selects the best model in a loop."""

from typing import List, NamedTuple

from kfp import dsl
from kfp.dsl import Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def select_best(
    models: Input[List[Model]],
    best: Output[Model],
    metric: str,
    metrics: Input[List[Metrics]] = None,
    direction: str = "",
) -> NamedTuple("Outputs", [("index", int), ("value", float)]):
    """Select the best of several models by a metric.

    The models come from a `dsl.ParallelFor`, collected by `dsl.Collected`. Each has a metric value in its metadata or
    in the same iteration's artifact in `metrics`. The best model's files and metadata are copied, with `selected_from`,
    its URI, `selected_index`, and the metric in the metadata. Among equal models the first is the best; a model with
    NaN is never selected.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines].

    Args:
        models: The models or model bundles.
        best: Copy of the best model.
        metric: Metric name, such as `accuracy`.
        metrics: The models' metrics, in their order; default the models' metadata.
        direction: `max` or `min`; default the metric's, see `evaluate_mindir`.

    Returns:
        index: The best model's index in the loop, from 0.
        value: Its metric.
    """
    from kfp_mindspore.steps.evaluation.best import select_best_model

    return select_best_model(models, best, metrics or models, metric=metric, direction=direction)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(select_best, package_path=__file__.replace(".py", ".yaml"))
