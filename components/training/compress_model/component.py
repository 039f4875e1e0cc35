"""Component that cuts channels from a trained network and fine-tunes it."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def compress_model(
    model: Input[Model],
    dataset: Input[Dataset],
    compressed: Output[Model],
    metrics: Output[Metrics],
    report: Output[HTML],
    min_pruned: float = 0.45,
    max_accuracy_lost: float = 0.005,
    method: str = "scop",
    pruned: float = 0.5,
    target: str = "parameters",
    metric: str = "",
    rounds: int = 3,
    epochs: int = 10,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    distillation: float = 0.5,
    temperature: float = 4.0,
    weights: str = "float32",
    seed: int = 0,
    augment: str = "",
) -> NamedTuple(
    "Outputs",
    [("passed", bool), ("pruned", float), ("metric", str), ("value", float), ("lost", float)],
):
    """Cut channels and attention heads from a trained network, fine-tune it, and stop when its metric loses too much.

    The cuts are checked before: the smaller network computes what the whole one does with the cut channels at zero.
    The output is exported by export_mindir as any training's. The step succeeds whether or not the metric holds; the
    best round is the output. Give `passed` to `deploy_kserve` as its gate.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        model: train_msjob's output; its `checkpoint/` records how to build the network.
        dataset: The dataset directory that it was trained on.
        compressed: The compressed network: `checkpoint/`, and the report.
        metrics: Parameters, FLOPs, bytes and latency before and after, and the metric.
        report: HTML page with sizes, rounds, each parameter's shapes, and what was left.
        min_pruned: Least part that later rounds may go back to when the first one loses too much.
        max_accuracy_lost: Most that the metric may worsen, in its units.
        method: Scores by which channels are kept. l1, bn, taylor, scop or random.
        pruned: Part that is cut in the first round, 0 to below 1; 0 cuts nothing, to pack weights only.
        target: What the parts are of. parameters, flops or latency.
        metric: The gate's metric; default the task's.
        rounds: Most rounds, each a cut and fine-tuning.
        epochs: Fine-tuning epochs in each round.
        batch_size: Samples per fine-tuning step.
        learning_rate: Fine-tuning's peak learning rate (AdamW, cosine schedule).
        distillation: Weight of the loss between the cut network's outputs and the whole one's, 0 to 1.
        temperature: Divides both networks' logits in it.
        weights: How weights are stored. float32, float16, int8, slb4, slb2 or slb1.
        seed: Seed for fine-tuning and random scores.
        augment: The training's augmentation for fine-tuning, as `module:function`; default none.

    Returns:
        passed: Whether the metric lost no more than allowed.
        pruned: Fraction of parameters that was cut.
        metric: Metric name.
        value: The compressed network's metric.
        lost: How much worse it is; below 0 for better.
    """
    from kfp_mindspore.compression.options import CompressionOptions
    from kfp_mindspore.steps.compress import compress_checkpoint

    options = CompressionOptions(
        method=method,
        pruned=pruned,
        min_pruned=min_pruned,
        target=target,
        max_accuracy_lost=max_accuracy_lost,
        metric=metric,
        rounds=rounds,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        distillation=distillation,
        temperature=temperature,
        weights=weights,
        seed=seed,
    )
    return compress_checkpoint(model, dataset, compressed, metrics, report, options, augment=augment)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(compress_model, package_path=__file__.replace(".py", ".yaml"))
