"""Component that compares a service's predictions with its model bundle's."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def smoke_test(
    bundle: Input[Model],
    url: str,
    model_name: str,
    sample_count: int = 32,
    tolerance: float = 1e-5,
) -> NamedTuple("Outputs", [("prediction", str), ("label", str), ("max_abs_diff", float), ("samples", int)]):
    """Send held-out samples to a service by KServe's V1 and V2 protocols and compare the predictions with the bundle's.

    The step fails if a prediction differs by more than the tolerance. Disable caching for this step in a pipeline
    (`task.set_caching_options(False)`), so that each run tests the live service.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[kubernetes,pipelines].

    Args:
        bundle: The model bundle that is served; its verified.npz contains samples and the network's outputs.
        url: The service's HTTP URL.
        model_name: Model name in the service's URLs.
        sample_count: Samples to send by each protocol.
        tolerance: Largest absolute difference allowed, for outputs up to 1; in proportion for larger ones.

    Returns:
        prediction: Prediction for one held-out sample: class, number or ids.
        label: That sample's true value; empty if unknown.
        max_abs_diff: Largest absolute difference over all samples and both protocols.
        samples: Samples sent by each protocol.
    """
    from kfp_mindspore.steps.deployment.deploy import smoke_test_service

    return smoke_test_service(bundle, url, model_name, sample_count=sample_count, tolerance=tolerance)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(smoke_test, package_path=__file__.replace(".py", ".yaml"))
