"""Component that computes a model bundle's predictions for a dataset shard."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def batch_predict(
    bundle: Input[Model],
    dataset: Input[Dataset],
    predictions: Output[Dataset],
    split: str = "test",
    shard: str = "1/1",
    engine: str = "memory",
    delimiter: str = "",
    device: str = "auto",
) -> NamedTuple("Outputs", [("samples", int)]):
    """Compute a model bundle's predictions for a dataset split, or for one shard of it.

    Shard "k/n" has every n-th sample from the k-th on. In a pipeline, `dsl.ParallelFor(shards)` over a parameter of
    type `List[str]` runs one step per shard; over an untyped `list`, KFP's driver fails.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        bundle: The model bundle.
        dataset: The dataset directory, or a table or folder of raw rows from another component.
        predictions: JSON lines with `index`, `outputs` by name and `prediction`: class, labels, number or ids by task.
        split: The dataset's split.
        shard: This step's shard and the shard count: "2/4" for the second of four.
        engine: `memory` for one process, or `ray` for Ray's workers, which read a sharded dataset by blocks.
        delimiter: The character between two cells of a CSV file, or `tab`; default found.
        device: Device to compute on: `auto`, CPU, GPU or Ascend. One that is not there is an error.

    Returns:
        samples: Samples in the shard.
    """
    from kfp_mindspore.steps.deployment.predict import predict_batch

    options = {"split": split, "shard": shard, "engine": engine, "delimiter": delimiter, "device": device}
    return (predict_batch(bundle, dataset, predictions, **options),)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(batch_predict, package_path=__file__.replace(".py", ".yaml"))
