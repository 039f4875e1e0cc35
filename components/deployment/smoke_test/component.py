"""Asks a served model over HTTP and compares its answers with the verified ones."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Model


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def smoke_test(
    bundle: Input[Model],
    url: str,
    model_name: str,
    sample_count: int = 32,
    tolerance: float = 1e-5,
) -> NamedTuple("Outputs", [("prediction", str), ("label", str), ("max_abs_diff", float), ("samples", int)]):
    """Ask a service for held-out samples by KServe's protocols V1 and V2 and compare with the bundle's own answers.

    The step fails when an answer differs by more than the tolerance. Switch caching off for it in a pipeline
    (`task.set_caching_options(False)`), so that every run asks the live service.

    Args:
        bundle: The model bundle that is served; its verified.npz has samples and the network's own answers.
        url: Address of the service over HTTP.
        model_name: Name of the model in the service's URLs.
        sample_count: Number of samples to ask for by each protocol.
        tolerance: Largest absolute difference allowed.

    Returns:
        prediction: The class that the service answered for one held-out sample.
        label: That sample's true class.
        max_abs_diff: Largest absolute difference found, over all samples and both protocols.
        samples: Number of samples asked for by each protocol.
    """
    from kfp_mindspore.inference import run_smoke_test
    from kfp_mindspore.steps.artifacts import record_smoke_test

    report = run_smoke_test(url, model_name, bundle.path, samples=sample_count, tolerance=tolerance)
    return record_smoke_test(report)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(smoke_test, package_path=__file__.replace(".py", ".yaml"))
