"""Layers for padded sequences that MindSpore 2.9 exports with a free batch.

`nn.GRU` and `nn.LSTM` with `seq_length`, and `nn.TransformerEncoder` with `src_key_padding_mask`, compare their inputs'
batch sizes in the graph, which then cannot be loaded. These layers give the same results without the comparison.
"""

from __future__ import annotations

from collections.abc import Callable

import mindspore
from mindspore import Tensor, nn, ops

# Added to the scores of padding: after softmax their weight is 0 in float32; -inf gives NaN for a row without a value.
_MASKED = -1e9


def mask_lengths(lengths: Tensor, size: int) -> Tensor:
    """Return the mask of sequences that are padded on the right.

    Args:
        lengths: Value counts, int32 with shape (N,), such as `Pad(lengths="lengths")` gives.
        size: Values in a padded sequence.

    Returns:
        1 for a value and 0 for padding, float32 with shape (N, size), as `Pad(mask="mask")` gives.
    """
    return (ops.arange(size) < lengths.expand_dims(1)).astype(mindspore.float32)


def average_values(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the values of each sequence, without the padding.

    Args:
        x: Sequences with shape (N, L, F).
        mask: 1 for a value and 0 for padding, float32 with shape (N, L).

    Returns:
        Means with shape (N, F); 0 for a sequence without a value.
    """
    weights = mask.expand_dims(2)
    return (x * weights).sum(1) / ops.maximum(weights.sum(1), 1.0)


class _Recurrent(nn.Cell):  # type: ignore[misc]
    """Stacked layers of a `kind` per direction, which return outputs with shape (N, L, H) and their state."""

    def __init__(
        self,
        kind: Callable[[int, int], nn.Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bidirectional: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.bidirectional = bidirectional
        self.num_layers = num_layers
        sizes = [input_size] + [hidden_size * (1 + bidirectional)] * (num_layers - 1)
        self.forward_layers = nn.CellList([kind(size, hidden_size) for size in sizes])
        self.backward_layers = nn.CellList([kind(size, hidden_size) for size in sizes if bidirectional])
        self.dropout = nn.Dropout(p=float(dropout))
        self.reverse = ops.ReverseSequence(1, 0)

    def construct(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and the last layer's final states."""
        mask = mask_lengths(lengths, x.shape[1]).expand_dims(2).astype(x.dtype)
        final = lengths
        for index in range(self.num_layers):
            if index:
                x = self.dropout(x)
            outputs = self.forward_layers[index](x)[0] * mask
            final = _select_last(outputs, lengths)
            if self.bidirectional:
                backward = self.backward_layers[index](self.reverse(x, lengths))[0] * mask
                final = ops.cat((final, _select_last(backward, lengths)), 1)
                outputs = ops.cat((outputs, self.reverse(backward, lengths)), 2)
            x = outputs
        return x, final


class _GRULayer(nn.Cell):  # type: ignore[misc]
    """A GRU over sequences with shape (N, L, F): MindSpore 2.9 fixes the batch of an exported nn.GRU's output."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.size = hidden_size
        self.inputs = nn.Dense(input_size, 3 * hidden_size)
        self.hidden = nn.Dense(hidden_size, 3 * hidden_size)

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.inputs(x)
        state = ops.zeros_like(gates[:, 0, : self.size])
        outputs: tuple[Tensor, ...] = ()
        for index in range(x.shape[1]):
            given, kept = gates[:, index], self.hidden(state)
            reset = ops.sigmoid(given[:, : self.size] + kept[:, : self.size])
            update = ops.sigmoid(given[:, self.size : 2 * self.size] + kept[:, self.size : 2 * self.size])
            new = ops.tanh(given[:, 2 * self.size :] + reset * kept[:, 2 * self.size :])
            state = new + update * (state - new)
            outputs += (state,)
        return ops.stack(outputs, 1), state


def _build_lstm(input_size: int, hidden_size: int) -> nn.Cell:
    return nn.LSTM(input_size, hidden_size, batch_first=True)


class MaskedGRU(_Recurrent):
    """Stacked GRU layers over sequences that are padded on the right; computes what `nn.GRU` with `seq_length` does.

    `construct(x, lengths)` takes x with shape (N, L, input_size) and lengths from 0 to L, int32 with shape (N,). It
    returns the last layer's outputs with shape (N, L, D · hidden_size), 0 for padding, and its final states with shape
    (N, D · hidden_size), where D is 2 if bidirectional, else 1. Each value is compiled as a step of its own, so a long
    sequence takes long to compile; `MaskedLSTM` does not.

    Args:
        input_size: Features per value, F.
        hidden_size: Layer width.
        num_layers: Layer count.
        bidirectional: Whether each layer reads the sequences in both directions.
        dropout: Share of values set to 0 between layers, in training.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(_GRULayer, input_size, hidden_size, num_layers, bidirectional, dropout)


class MaskedLSTM(_Recurrent):
    """Stacked LSTM layers over sequences that are padded on the right; computes what `nn.LSTM` with `seq_length` does.

    Arguments and results are as for `MaskedGRU`; the final states are the hidden ones.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(_build_lstm, input_size, hidden_size, num_layers, bidirectional, dropout)


class MaskedTransformerEncoder(nn.Cell):  # type: ignore[misc]
    """Transformer encoder over padded sequences; computes what `nn.TransformerEncoder` does with a mask.

    `construct(x, mask)` takes x with shape (N, L, width) and mask, float32 with shape (N, L), 1 for a value and 0 for
    padding on either side. It returns an array with x's shape; the values at padding have no meaning.

    Args:
        width: Features per value, a multiple of `heads`.
        heads: Attention heads.
        hidden_size: Width of the feed-forward layers.
        num_layers: Layer count.
        dropout: Share of values set to 0 in attention and layers, in training.
    """

    def __init__(self, width: int, heads: int, hidden_size: int, num_layers: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width: must be a multiple of heads ({heads}), got {width}")
        self.layers = nn.CellList([_EncoderLayer(width, heads, hidden_size, dropout) for _ in range(num_layers)])

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the encoded sequences."""
        scores = ((1.0 - mask) * _MASKED).astype(x.dtype).expand_dims(1).expand_dims(1)
        for layer in self.layers:
            x = layer(x, scores)
        return x


class _EncoderLayer(nn.Cell):  # type: ignore[misc]
    """Attention and feed-forward layers, each with normalisation after the sum, as in `nn.TransformerEncoderLayer`."""

    def __init__(self, width: int, heads: int, hidden_size: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.scale = float((width // heads) ** -0.5)
        self.projection = nn.Dense(width, 3 * width, weight_init="xavier_uniform")
        self.out = nn.Dense(width, width)
        self.dense1 = nn.Dense(width, hidden_size)
        self.dense2 = nn.Dense(hidden_size, width)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.dropout = nn.Dropout(p=float(dropout))

    def construct(self, x: Tensor, scores: Tensor) -> Tensor:
        size, width = x.shape[1], x.shape[2]
        parts = self.projection(x).reshape((-1, size, 3, self.heads, width // self.heads)).transpose(2, 0, 3, 1, 4)
        weights = ops.softmax(ops.matmul(parts[0] * self.scale, parts[1].swapaxes(2, 3)) + scores, -1)
        heads = ops.matmul(self.dropout(weights), parts[2]).transpose(0, 2, 1, 3).reshape((-1, size, width))
        x = self.norm1(x + self.dropout(self.out(heads)))
        return self.norm2(x + self.dropout(self.dense2(self.dropout(ops.relu(self.dense1(x))))))


def _select_last(outputs: Tensor, lengths: Tensor) -> Tensor:
    """Return the output at each sequence's last value, with shape (N, H); outputs are 0 at padding."""
    chosen = (ops.arange(outputs.shape[1]) == lengths.expand_dims(1) - 1).astype(outputs.dtype)
    return (outputs * chosen.expand_dims(2)).sum(1)
