"""Component that selects the samples to label next."""

from typing import List, NamedTuple

from kfp import dsl
from kfp.dsl import Dataset, Input, Model, Output


@dsl.component(base_image="kfp-mindspore.invalid/python:placeholder", install_kfp_package=False)
def select_samples(
    dataset: Input[Dataset],
    selected: Output[Dataset],
    bundle: Input[Model] = None,
    strategy: str = "margin",
    count: int = 20,
    seed: int = 42,
) -> NamedTuple("Outputs", [("indexes", List[int]), ("labelled", int), ("remaining", int)]):
    """Move the most informative samples of the split `pool` to the split `train`: a round of active learning.

    A dataset without a split `pool` begins one: all its training samples become the pool, of which `random` selects
    the first ones to label. Targets of the pool are never read: in a simulation they are the true labels, otherwise
    the samples at `indexes` are labelled before the next training.

    Args:
        dataset: The dataset directory.
        selected: The dataset directory with `count` samples more in `train` and less in `pool`.
        bundle: The model trained on the labelled samples; not needed for `random`.
        strategy: `entropy`, `margin`, `k_centre` (distance of the scores), or `random`.
        count: Number of samples to select.
        seed: Seed of `random`, and of the order of equal samples.

    Returns:
        indexes: Indexes of the selected samples in the pool, best first.
        labelled: Number of samples in the split `train` afterwards.
        remaining: Number of samples in the split `pool` afterwards.
    """
    from kfp_mindspore.steps.evaluation.selection import select_from_pool

    return select_from_pool(bundle, dataset, selected, strategy=strategy, count=count, seed=seed)


if __name__ == "__main__":
    from kfp import compiler

    compiler.Compiler().compile(select_samples, package_path=__file__.replace(".py", ".yaml"))
