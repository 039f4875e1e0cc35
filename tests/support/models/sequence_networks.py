"""Networks over sequences of unequal length that train, some of which MindSpore cannot export."""

from __future__ import annotations

from mindspore import nn, ops


class Gated(nn.Cell):
    """A GRU by default; its length check cannot be exported with a free batch."""

    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.rnn = kind(4, 8, bidirectional=True, batch_first=True)
        self.head = nn.Dense(16, 3)

    def construct(self, x, lengths):
        outputs, _ = self.rnn(x, seq_length=lengths)
        return self.head(outputs.mean(1))


class Whole(nn.Cell):
    """A GRU without lengths; its exported output keeps the first batch size."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 8, batch_first=True)
        self.head = nn.Dense(8, 3)

    def construct(self, x):
        outputs, _ = self.rnn(x)
        return self.head(outputs.mean(1))


class Masked(nn.Cell):
    """A transformer; its mask check cannot be exported with a free batch."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Dense(4, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.head = nn.Dense(8, 3)

    def construct(self, x, mask):
        encoded = self.encoder(self.embed(x), src_key_padding_mask=mask)
        return self.head(encoded.mean(1))


class Limited(nn.Cell):
    """A layer of the user's own that raises."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        if x.shape[0] > 1000:
            raise ValueError("too many rows")
        return self.dense(x)


class Nested(nn.Cell):
    """Has `Limited` in a list."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([nn.Dense(4, 4), nn.SequentialCell(nn.ReLU(), Limited())])
        self.head = nn.Dense(4, 3)

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Random(nn.Cell):
    """Exports; draws random numbers in training and has running statistics."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(p=0.3)
        self.head = nn.Dense(16, 3)

    def construct(self, x):
        hidden = self.drop(ops.relu(self.norm(self.dense(x))))
        if self.training:
            hidden = hidden + 0.1 * ops.standard_normal(hidden.shape)
        return self.head(hidden)


class Unfit(nn.Cell):
    """Takes five numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(5, 8), nn.ReLU(), nn.Dense(8, 3))

    def construct(self, x):
        return self.layers(x)


class Branch(nn.Cell):
    """Branches on a value, which MindSpore 2.9 compiles for one batch size only."""

    def __init__(self):
        super().__init__()
        self.head = nn.Dense(4, 3)

    def construct(self, x):
        if x.sum() > 0:
            return self.head(x)
        return self.head(-x)
