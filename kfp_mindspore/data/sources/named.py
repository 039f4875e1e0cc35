"""The data sets that have a name instead of a path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from kfp_mindspore.data.sources import (
    fashion_mnist,
    movielens,
    new_testament,
    reviews,
    scenes,
    shapes,
    sklearn_sets,
    waves,
)
from kfp_mindspore.data.sources.base import Source, SourceRequest

READERS: Mapping[str, Callable[[SourceRequest], Source]] = {
    **{name: partial(sklearn_sets.read_set, name) for name in sklearn_sets.NAMES},
    "fashion_mnist": fashion_mnist.read_set,
    movielens.NAME: movielens.read_movielens,
    new_testament.NAME: new_testament.read_new_testament,
    reviews.NAME: reviews.read_reviews,
    scenes.NAME: scenes.read_scenes,
    shapes.NAME: shapes.read_shapes,
    waves.NAME: waves.read_waves,
}
"""Reader of each set; the packages that hold the data are imported or found when it is called."""
