"""A model bundle's predictions for a whole split, in parallel shards."""

from typing import List

from kfp import dsl


# kfp 2.17 loads a compiled pipeline as its step when both have one name.
@dsl.pipeline(
    name="batch-prediction",
    description="Compute the predictions of a model bundle for a split of a dataset, one parallel step per shard.",
)
def batch_predict(
    model: str,
    data: str = "digits",
    split: str = "test",
    shards: List[str] = ["1/2", "2/2"],
    seed: int = 42,
):
    """Compute a model bundle's predictions for a dataset in parallel shards.

    Args:
        model: Model bundle URI, such as the `bundle` from an earlier run; a directory in a local run.
        data: Dataset name, path or URI, see `load_dataset`.
        split: The dataset's split.
        shards: The shards, one step each: ["1/3", "2/3", "3/3"] for three steps. At most two run at once locally.
        seed: Split seed.
    """
    from kfp_mindspore.components import batch_predict, load_dataset

    bundle = dsl.importer(artifact_uri=model, artifact_class=dsl.Model)
    loaded = load_dataset(name=data, seed=seed)
    with dsl.ParallelFor(shards) as shard:
        # Each shard names their number: KFP's driver refuses the list itself inside the loop over it.
        batch_predict(bundle=bundle.output, dataset=loaded.outputs["dataset"], split=split, shard=shard)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(batch_predict, package_path=__file__.replace(".py", ".yaml"))
