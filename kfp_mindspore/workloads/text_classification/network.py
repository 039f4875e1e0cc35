"""The network, built by `train.py` and by the export step."""

import mindspore
from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal


class Network(nn.Cell):
    """Embeddings, a convolution over neighbours, mean and maximum of ids (N, L); returns scores (N, classes).

    Padding has no influence on the scores.

    Args:
        size: Id count.
        classes: Class count.
        padding: Id of the padding.
        width: A token's vector size.
        window: Tokens in the convolution.
        dropout: Probability with which a value is dropped in training.
    """

    def __init__(
        self, size: int, classes: int, padding: int = 0, width: int = 64, window: int = 5, dropout: float = 0.3
    ) -> None:
        super().__init__()
        self.padding = padding
        self.embedding = nn.Embedding(size, width, embedding_table=Normal(0.1), padding_idx=padding)
        self.neighbours = nn.Conv1d(width, width, window, pad_mode="same", has_bias=True)
        self.dropout = nn.Dropout(p=dropout)
        self.scores = nn.Dense(2 * width, classes)

    def construct(self, text: Tensor) -> Tensor:
        """Return the scores."""
        mask = (text != self.padding).astype(mindspore.float32)[:, :, None]
        vectors = self.embedding(text) * mask
        # At least 0, so that padding never is the maximum.
        vectors = ops.relu(self.neighbours(vectors.swapaxes(1, 2)).swapaxes(1, 2)) * mask
        mean = vectors.sum(axis=1) / ops.clamp(mask.sum(axis=1), 1.0)
        return self.scores(self.dropout(ops.cat((mean, vectors.max(axis=1)), axis=1)))
