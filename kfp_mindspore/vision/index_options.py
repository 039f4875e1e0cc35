"""Options of an index of pictures, without MindSpore."""

from __future__ import annotations

from dataclasses import dataclass

from kfp_mindspore.options import check_options, option


@dataclass(frozen=True)
class IndexOptions:
    """Options of an index of pictures, checked when they are built.

    Args:
        max_pictures: Pictures to index, the first ones by name; 0 for all.
        strict: Whether a picture that cannot be read is an error; else it is listed and left out.
        min_improvement: Least difference of recall_at_5 from a search by words alone.

    Raises:
        ValidationError: A value is invalid; the message names each field.
    """

    max_pictures: int = option(0, minimum=0)
    strict: bool = False
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        check_options(self, subject="the index")
