"""The network, built by `train.py` and by the export step."""

from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal


class Network(nn.Cell):
    """Wide & Deep: the sum of a linear model of ids and of a network over their embeddings.

    Source: Cheng et al.: Wide & Deep Learning for Recommender Systems, https://arxiv.org/abs/1606.07792

    Args:
        users: Number of indexes of users; 0 is an unknown user.
        movies: Number of indexes of movies; 0 is an unknown movie.
        genres: Number of ids of genres; 0 is padding.
        width: Width of the embeddings.
        hidden: Width of the hidden layer.
        dropout: Probability to drop an activation of the hidden layer.
    """

    def __init__(
        self, users: int, movies: int, genres: int, width: int = 8, hidden: int = 32, dropout: float = 0.2
    ) -> None:
        super().__init__()
        sizes = (users, movies, genres)
        self.wide = nn.CellList([nn.Embedding(size, 1, embedding_table="zeros") for size in sizes])
        self.embeddings = nn.CellList([nn.Embedding(size, width, embedding_table=Normal(0.01)) for size in sizes])
        self.deep = nn.SequentialCell(
            nn.Dense(len(sizes) * width, hidden, weight_init="HeUniform"),
            nn.ReLU(),
            nn.Dropout(p=dropout),
            nn.Dense(hidden, 1),
        )

    def construct(self, user: Tensor, movie: Tensor, genres: Tensor) -> Tensor:
        """Return the probabilities of no and yes, (N, 2), for indexes (N,) and padded ids of genres (N, L)."""
        wide = _look_up(self.wide, user, movie, genres)
        deep = _look_up(self.embeddings, user, movie, genres)
        liked = ops.sigmoid(ops.cat(wide, axis=1).sum(axis=1, keepdims=True) + self.deep(ops.cat(deep, axis=1)))
        return ops.cat((1 - liked, liked), axis=1)


def _look_up(tables: nn.CellList, user: Tensor, movie: Tensor, genres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of the user, the movie, and the mean row of the genres, each (N, width)."""
    users, movies, names = tables
    known = (genres > 0).astype("float32").expand_dims(-1)
    mean = (names(genres) * known).sum(axis=1) / ops.clamp(known.sum(axis=1), min=1)
    return users(user), movies(movie), mean
