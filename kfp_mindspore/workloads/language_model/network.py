"""The network, built by `train.py` and by the export step."""

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal

PADDING = 0


class Block(nn.Cell):
    """Causal self-attention and a feed-forward layer, each added to its input.

    Args:
        width: A position's vector size.
        heads: How many attention heads; must divide `width`.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm((width,))
        self.projection = nn.Dense(width, 3 * width)
        self.attended = nn.Dense(width, width)
        self.feed_forward = nn.SequentialCell(
            nn.LayerNorm((width,)), nn.Dense(width, 4 * width), nn.ReLU(), nn.Dense(4 * width, width)
        )

    def construct(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Return vectors (N, L, width); `mask` (N, 1, L, L) is added to the attention's scores."""
        _, length, width = vectors.shape
        parts = self.projection(self.norm(vectors)).reshape(-1, length, 3 * self.heads, width // self.heads)
        query, key, value = ops.split(parts.swapaxes(1, 2), self.heads, axis=1)
        scores = ops.matmul(query, key.swapaxes(2, 3)) * (width // self.heads) ** -0.5
        heads = ops.matmul(ops.softmax(scores + mask, axis=-1), value)
        vectors = vectors + self.attended(heads.swapaxes(1, 2).reshape(-1, length, width))
        return vectors + self.feed_forward(vectors)


class Network(nn.Cell):
    """A causal transformer: scores for the character that follows each position, from the characters up to it.

    A convolution over the last characters before the attention replaces position embeddings, so padding in front of a
    text does not change its scores.

    Args:
        size: Id count; id 0 is padding.
        length: Ids per text.
        width: A position's vector size.
        heads: How many attention heads.
        blocks: Block count.
        window: Characters in the convolution.
    """

    def __init__(
        self, size: int, length: int, width: int = 128, heads: int = 4, blocks: int = 2, window: int = 5
    ) -> None:
        super().__init__()
        self.window = window
        self.embedding = nn.Embedding(size, width, embedding_table=Normal(0.02), padding_idx=PADDING)
        self.local = nn.Conv1d(width, width, window, pad_mode="valid", has_bias=True)
        self.blocks = nn.CellList([Block(width, heads) for _ in range(blocks)])
        self.scores = nn.SequentialCell(nn.LayerNorm((width,)), nn.Dense(width, size))
        self.future = Tensor(np.triu(np.full((length, length), -1e9, np.float32), 1))

    def construct(self, text: Tensor) -> Tensor:
        """Return scores (N, L, size) for ids (N, L)."""
        padding = (text == PADDING).astype(mindspore.float32) * -1e9
        mask = self.future + padding[:, None, None, :]
        vectors = self.embedding(text)
        before = ops.pad(vectors.swapaxes(1, 2), (self.window - 1, 0))
        vectors = vectors + self.local(before).swapaxes(1, 2)
        for block in self.blocks:
            vectors = block(vectors, mask)
        return self.scores(vectors)
