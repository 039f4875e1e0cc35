"""The network, built by `train.py` and by the export step."""

from kfp_mindspore.training.sequences import MaskedLSTM
from mindspore import Tensor, nn


class Network(nn.Cell):
    """A bidirectional LSTM over padded lists; returns scores with shape (N, classes).

    `construct`'s parameters have the dataset's input names: the column `values`, and the lengths that its step `Pad`
    gives. `MaskedGRU` and `MaskedTransformerEncoder` are used alike; MindSpore's own layers with lengths or masks
    cannot be exported.

    Args:
        features: Numbers per value: 1 for lists of numbers, F for lists of lists with F numbers.
        classes: Class count.
        hidden: Layer width.
    """

    def __init__(self, features: int, classes: int, hidden: int = 32) -> None:
        super().__init__()
        self.features = features
        self.layers = MaskedLSTM(features, hidden, bidirectional=True)
        self.scores = nn.Dense(2 * hidden, classes)

    def construct(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Return the scores for values with shape (N, L) or (N, L, F) and lengths with shape (N,)."""
        _, final = self.layers(values.reshape((-1, values.shape[1], self.features)), lengths)
        return self.scores(final)
