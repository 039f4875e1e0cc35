"""Exports a trained network to MindIR, checked against the network itself."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def export_mindir(
    model: Input[Model],
    dataset: Input[Dataset],
    bundle: Output[Model],
    batch: int = 0,
    samples: int = 64,
    network: str = "",
    network_arguments: dict = {},
    transform: str = "",
) -> NamedTuple("Outputs", [("max_abs_diff", float)]):
    """Export a checkpoint's network to MindIR, load it again and compare both on held-out samples.

    Args:
        model: What train_msjob wrote; its `checkpoint/` says how the network is built again.
        dataset: The dataset directory whose test split the comparison uses.
        bundle: The model bundle: model.mindir, signature.json (inputs, outputs, digests) and verified.npz (the samples
            and the network's own answers). Its metadata hold the signature.
        batch: Batch size of the exported graph; 0 leaves it free.
        samples: Number of held-out samples to compare and keep, at least 32.
        network: Factory of the network as `module:callable`, over what the checkpoint says.
        network_arguments: Keyword arguments of the factory, over what the checkpoint says.
        transform: What is done before and after the graph where it is served: a Python file in the step's image, which
            is tried and becomes part of the bundle, or the name of a transform that an installed package registers.

    Returns:
        max_abs_diff: Largest absolute difference between the outputs of the exported graph and of the network.
    """
    from kfp_mindspore.mindir import export_mindir
    from kfp_mindspore.steps.artifacts import record_bundle

    exported = export_mindir(
        f"{model.path}/checkpoint",
        bundle.path,
        dataset_dir=dataset.path,
        batch=batch or "free",
        sample_count=samples,
        network=network or None,
        network_arguments=network_arguments or None,
        transform=transform or None,
    )
    return (record_bundle(exported, bundle),)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(export_mindir, package_path=__file__.replace(".py", ".yaml"))
