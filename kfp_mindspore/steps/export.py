"""The step that exports a checkpoint to MindIR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.steps.launch.arguments import parse_numbers, to_metadata

if TYPE_CHECKING:
    from kfp import dsl


def export_model(
    model: dsl.Model,
    dataset: dsl.Dataset | None,
    bundle: dsl.Model,
    *,
    batch: int = 0,
    samples: int = 64,
    **options: Any,
) -> float:
    """Export a model's checkpoint to a verified bundle and describe it in the bundle's metadata.

    Args:
        model: A training step's output; its `checkpoint/` is exported.
        dataset: The dataset directory, whose test split verifies the graph; None for the model's `dataset/`.
        bundle: Output artifact; the bundle is written to its path.
        batch: The graph's batch size; 0 for a free one.
        samples: Held-out samples to compare and keep.
        options: Other fields of `ExportOptions`; empty for their defaults.

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
    options["network_arguments"] = parse_numbers(options.get("network_arguments") or {})
    signature = export_mindir(
        f"{model.path}/checkpoint",
        bundle.path,
        dataset_dir=dataset.path if dataset else f"{model.path}/dataset",
        batch=batch or "free",
        sample_count=samples,
        **{name: value for name, value in options.items() if value},
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
