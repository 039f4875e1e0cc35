"""Component that evaluates an exported model by a function, such as a simulation."""

from typing import NamedTuple, Optional

from kfp import dsl
from kfp.dsl import Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def evaluate_function(
    bundle: Input[Model],
    metrics: Output[Metrics],
    function: str,
    arguments: dict = {},
    threshold: Optional[float] = None,
    lower_is_better: bool = False,
) -> NamedTuple("Outputs", [("metric", str), ("value", float), ("passed", bool)]):
    """Evaluate a model bundle by your own function and compare its first metric with a threshold.

    For models whose quality is not a metric on a test split: games, control, simulations, costs. The function gets a
    `kfp_mindspore.mindir.ModelRunner`, which predicts as the server does, and the arguments; it returns metrics by
    name. The step succeeds whether or not the threshold is reached. A pipeline gives `passed` to `deploy_kserve` as its
    gate.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        bundle: The model bundle.
        metrics: All the function's metrics, and the threshold.
        function: The function as `module:callable`, in the step's image.
        arguments: Its keyword arguments; values can be pipeline parameters.
        threshold: First metric's value that passes, as does a better one; default no gate.
        lower_is_better: Whether the threshold is a maximum.

    Returns:
        metric: The first metric's name.
        value: Its value.
        passed: Whether the value reaches the threshold.
    """
    from kfp_mindspore.steps.evaluation.evaluate import evaluate_by_function

    return evaluate_by_function(
        bundle, metrics, function=function, arguments=arguments, threshold=threshold, lower_is_better=lower_is_better
    )


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(evaluate_function, package_path=__file__.replace(".py", ".yaml"))
