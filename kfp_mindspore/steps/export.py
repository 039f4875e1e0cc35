"""The step that exports a checkpoint to MindIR."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.steps.launch.arguments import parse_numbers, to_metadata

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.mindir.options import ExportOptions


def export_model(
    model: dsl.Model,
    dataset: dsl.Dataset | None,
    bundle: dsl.Model,
    options: ExportOptions,
) -> float:
    """Export a model's checkpoint to a verified bundle and describe it in the bundle's metadata.

    Args:
        model: A training step's output, whose `checkpoint/` is exported.
        dataset: The dataset directory, whose test split verifies the graph; None for the model's `dataset/`.
        bundle: Output artifact; the bundle is written there.
        options: The options.

    Returns:
        Largest absolute difference between the exported graph's and the network's outputs.
    """
    from kfp_mindspore.compat.mindspore_import import import_mindspore
    from kfp_mindspore.formats.bundle import MODEL_FILE
    from kfp_mindspore.formats.checkpoint import DESCRIPTION, Checkpoint
    from kfp_mindspore.mindir import export_mindir
    from kfp_mindspore.tracking.trackers import tag_runs

    import_mindspore()
    # KFP turns the integers in a dict into floats.
    if options.network_arguments:
        options = dataclasses.replace(options, network_arguments=parse_numbers(options.network_arguments))
    signature = export_mindir(
        f"{model.path}/checkpoint",
        bundle.path,
        options,
        dataset_dir=dataset.path if dataset else f"{model.path}/dataset",
    ).signature
    difference = float(signature.verified["max_abs_diff"])
    bundle.metadata.update(
        framework="mindspore",
        framework_version=signature.mindspore_version,
        format="mindir",
        digest=f"sha256:{signature.files[MODEL_FILE]['sha256']}",
        inputs=to_metadata([spec.to_dict() for spec in signature.inputs]),
        outputs=to_metadata([spec.to_dict() for spec in signature.outputs]),
        files=to_metadata(signature.files),
        verified=to_metadata(signature.verified),
        labels=to_metadata(signature.labels),
        max_abs_diff=difference,
    )
    trained = Path(model.path, "checkpoint")
    if (trained / DESCRIPTION).is_file():
        tag_runs(Checkpoint.read_description(trained).training.get("trackers", {}), {"bundle": bundle.uri})
    verified = signature.verified
    print(
        f"largest difference between graph and network {difference:.3g} over {verified['samples']} samples, "
        f"tolerance {verified['tolerance']:.3g}: verified",
        flush=True,
    )
    return difference
