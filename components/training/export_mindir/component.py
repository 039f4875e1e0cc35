"""Component that exports a trained network to a verified MindIR bundle."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def export_mindir(
    model: Input[Model],
    bundle: Output[Model],
    dataset: Input[Dataset] = None,
    batch: int = 0,
    samples: int = 64,
    network: str = "",
    network_arguments: dict = {},
    transform: str = "",
    extra_columns: str = "ignore",
    rename: list = [],
    statistics: bool = True,
    device: str = "auto",
) -> NamedTuple("Outputs", [("max_abs_diff", float)]):
    """Export a checkpoint's network to MindIR, reload it and compare both on held-out samples.

    The bundle contains model.mindir, signature.json (inputs, outputs, digests) and verified.npz (samples and the
    network's outputs). A transform is the served model's preprocessing and postprocessing: a Python file is tested and
    copied to the bundle; a name refers to a transform in an installed package. A training without a dataset, such as
    self-play, writes one with samples to `dataset/` in its output.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        model: train_msjob's output; its `checkpoint/` records how to build the network, or is any script's.
        bundle: The model bundle, with its signature and digests in its metadata.
        dataset: The dataset directory, whose test split is compared; default the model's `dataset/`.
        batch: The exported graph's batch size; 0 for a free one.
        samples: Held-out samples to compare and keep, at least 32.
        network: The network's factory as `module:callable`; default the checkpoint's.
        network_arguments: The factory's keyword arguments; default the checkpoint's.
        transform: The served model's transform: a Python file, or a registered name, in the step's image.
        extra_columns: Columns in rows to predict that the table did not have: `ignore` or `refuse`.
        rename: Renames of the checkpoint's parameters, PATTERN=REPLACEMENT with a regular expression.
        statistics: Whether the bundle has the training data's statistics, which `service drift` compares requests with.
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error.

    Returns:
        max_abs_diff: Largest absolute difference between the exported graph's and the network's outputs.
    """
    from kfp_mindspore.mindir.options import ExportOptions
    from kfp_mindspore.steps.export import export_model

    options = ExportOptions(
        batch=batch or "free",
        sample_count=samples,
        network=network or None,
        network_arguments=network_arguments or None,
        transform=transform or None,
        extra_columns=extra_columns or "ignore",
        rename=rename,
        statistics=statistics,
        device=device or "auto",
    )
    return (export_model(model, dataset, bundle, options),)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(export_mindir, package_path=__file__.replace(".py", ".yaml"))
