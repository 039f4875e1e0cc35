"""Component that exports a trained network to a verified MindIR bundle."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def export_mindir(
    model: Input[Model],
    bundle: Output[Model],
    dataset: Input[Dataset] = None,
    batch: int = 0,
    samples: int = 64,
    network: str = "",
    network_arguments: dict = {},
    transform: str = "",
) -> NamedTuple("Outputs", [("max_abs_diff", float)]):
    """Export a checkpoint's network to MindIR, reload it and compare both on held-out samples.

    The bundle contains model.mindir, signature.json (inputs, outputs, digests) and verified.npz (samples and the
    network's outputs). A transform is the preprocessing and postprocessing of the served model: a Python file is tested
    and copied to the bundle; a name is that of a transform of an installed package. A training without a dataset, such
    as self-play, writes one with samples to `dataset/` of its output.

    Args:
        model: Output of train_msjob; its `checkpoint/` records how to build the network.
        bundle: The model bundle, with its signature and digests in its metadata.
        dataset: The dataset directory, whose test split is compared; default `dataset/` of the model.
        batch: Batch size of the exported graph; 0 for a free one.
        samples: Number of held-out samples to compare and keep, at least 32.
        network: Factory of the network as `module:callable`; default the checkpoint's.
        network_arguments: Keyword arguments of the factory; default the checkpoint's.
        transform: Transform of the served model: a Python file in the step's image, or a registered name.

    Returns:
        max_abs_diff: Largest absolute difference between the outputs of the exported graph and of the network.
    """
    from kfp_mindspore.steps.export import export_model

    difference = export_model(
        model,
        dataset,
        bundle,
        batch=batch,
        samples=samples,
        network=network,
        network_arguments=network_arguments,
        transform=transform,
    )
    return (difference,)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(export_mindir, package_path=__file__.replace(".py", ".yaml"))
