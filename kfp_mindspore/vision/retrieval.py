"""How well pictures and texts find each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kfp_mindspore.lm.options import RECALL
from kfp_mindspore.lm.search import rank_right, summarise_ranks


def measure_retrieval(images: NDArray[Any], texts: NDArray[Any], right: NDArray[np.int64]) -> dict[str, float]:
    """Return `accuracy` and `recall_at_5`.

    A wrong candidate that is as similar as the best right one precedes it.

    Args:
        images: The pictures' embeddings, (N, width).
        texts: The different texts' embeddings, (M, width); each has a picture.
        right: Each picture's text, (N,).

    Returns:
        `accuracy`, the fraction of pictures whose own text is the most similar, and `recall_at_5`, the fraction of
        texts with an own picture among the five most similar ones.
    """
    pictures, _ = rank_right(images, texts, right[:, None].tolist())
    queries, _ = rank_right(texts, images, [np.flatnonzero(right == text).tolist() for text in range(len(texts))])
    return {"accuracy": float((pictures == 1).mean()), RECALL: summarise_ranks(queries)[RECALL]}
