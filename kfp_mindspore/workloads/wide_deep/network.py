"""The network, built by `train.py` and by the export step."""

from mindspore import Tensor, nn, ops
from mindspore.common.initializer import Normal


class Network(nn.Cell):
    """Wide & Deep: a linear model on ids plus a network on their embeddings.

    Source: Cheng et al.: Wide & Deep Learning for Recommender Systems, https://arxiv.org/abs/1606.07792

    Args:
        users: Number of user indexes; 0 is an unknown user.
        movies: Number of movie indexes; 0 is an unknown movie.
        genres: Number of genre ids; 0 is padding.
        width: Embedding width.
        hidden: The hidden layer's width.
        dropout: Probability to drop an activation in the hidden layer.
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
        """Return the probabilities for no and yes, (N, 2), for indexes (N,) and padded genre ids (N, L)."""
        wide = _look_up(self.wide, user, movie, genres)
        deep = _look_up(self.embeddings, user, movie, genres)
        liked = ops.sigmoid(ops.cat(wide, axis=1).sum(axis=1, keepdims=True) + self.deep(ops.cat(deep, axis=1)))
        return ops.cat((1 - liked, liked), axis=1)


def _look_up(tables: nn.CellList, user: Tensor, movie: Tensor, genres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the user's row, the movie's, and the genres' mean row, each (N, width)."""
    users, movies, names = tables
    known = (genres > 0).astype("float32").expand_dims(-1)
    mean = (names(genres) * known).sum(axis=1) / ops.clamp(known.sum(axis=1), min=1)
    return users(user), movies(movie), mean
