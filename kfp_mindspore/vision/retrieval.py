"""How well pictures and texts find each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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
    scores = images @ texts.T
    own = right[:, None] == np.arange(len(texts))
    best_text = np.where(own, -np.inf, scores).max(1)
    best_picture = np.where(own, scores, -np.inf).max(0)
    preceding = (~own & (scores >= best_picture)).sum(0)
    accuracy = (scores[np.arange(len(right)), right] > best_text).mean()
    return {"accuracy": float(accuracy), "recall_at_5": float((preceding < 5).mean())}
