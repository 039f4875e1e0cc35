"""Component that selects the samples to label next."""

from typing import List, NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:use-kfp_mindspore.dsl.set_image", install_kfp_package=False)
def select_samples(
    dataset: Input[Dataset],
    selected: Output[Dataset],
    bundle: Input[Model] = None,
    strategy: str = "margin",
    count: int = 20,
    seed: int = 42,
) -> NamedTuple("Outputs", [("indexes", List[int]), ("labelled", int), ("remaining", int)]):
    """Move the most informative samples of the split `pool` to the split `train`: a round of active learning.

    A dataset without a split `pool` begins one: all its training samples become the pool, of which `random` selects the
    first ones to label. The pool's targets are never read: in a simulation they are the true labels, otherwise the
    samples at `indexes` are labelled before the next training.

    Set the image by `task.set_container_image(IMAGE)`, with kfp-mindspore[pipelines,train].

    Args:
        dataset: The dataset directory.
        selected: The dataset directory with `count` samples more in `train` and less in `pool`.
        bundle: The model trained on the labelled samples; not needed for `random`.
        strategy: `entropy`, `margin`, `k_centre` (distance between scores), or `random`.
        count: Samples to select.
        seed: Seed for `random`, and for the order among equal samples.

    Returns:
        indexes: The selected samples' indexes in the pool, best first.
        labelled: Samples in the split `train` afterwards.
        remaining: Samples in the split `pool` afterwards.
    """
    from kfp_mindspore.steps.evaluation.selection import select_from_pool

    return select_from_pool(bundle, dataset, selected, strategy=strategy, count=count, seed=seed)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(select_samples, package_path=__file__.replace(".py", ".yaml"))
