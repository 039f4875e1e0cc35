"""Component that selects the best model of a loop."""

from typing import List, NamedTuple

from kfp import dsl
from kfp.dsl import Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def select_best(
    models: Input[List[Model]],
    best: Output[Model],
    metric: str,
    metrics: Input[List[Metrics]] = None,
    direction: str = "",
) -> NamedTuple("Outputs", [("index", int), ("value", float)]):
    """Select the best of several models by a metric.

    The models are those of a `dsl.ParallelFor`, collected by `dsl.Collected`. Each has a value of the metric in its
    metadata or in the artifact of the same iteration in `metrics`. The files and the metadata of the best model are
    copied, with `selected_from`, its URI, `selected_index`, and the metric in the metadata. Of equal models the first
    one is the best; a model with NaN is never selected.

    Args:
        models: The models or model bundles.
        best: Copy of the best model.
        metric: Name of the metric, such as `accuracy`.
        metrics: Metrics of the models, in their order; default the models' metadata.
        direction: `max` or `min`; default that of the metric, see `evaluate_mindir`.

    Returns:
        index: Index of the best model in the loop, from 0.
        value: Its metric.
    """
    from kfp_mindspore.steps.evaluation.best import select_best_model

    return select_best_model(models, best, metrics or models, metric=metric, direction=direction)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(select_best, package_path=__file__.replace(".py", ".yaml"))
