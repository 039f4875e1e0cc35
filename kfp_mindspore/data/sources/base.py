"""What a reader returns, and the request that it receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, suggest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kfp_mindspore.transform.pipeline import Step

TARGETS = ("target", "label", "labels", "class")
"""Names of a target column that needs no `target` option."""
TAB = "\t"


@dataclass(frozen=True)
class SourceRequest:
    """The fields needed from a source.

    Args:
        fields: All fields that are needed; None for every field.
        guess_target: Whether the field with a target's name is needed too, since no option names the target.
        exact: Fields whose dtype is kept: targets, ids, weights, the split's fields, inputs with one field. Table
            readers may read other numbers as float32, since they are stacked in a float32 column.
        optional: Fields that are read where the source has them, beside `fields`.
        texts: Fields that a CSV file has as texts, also where all of them look like numbers.
        delimiter: The character between two cells of a CSV file; empty to find it.
        lists: The columns whose lists may have unequal lengths, each with the most values in a list, 0 for any number;
            the name "" is for each column that no option names.
        length: Length of a text file's windows, in characters.
        text_lines: Whether a line in a text file is a sample, instead of a window.
        image_size: Image height and width in a folder; None for the most frequent size.
        max_pixels: Most pixels of an image in a folder.
        drop_boxes: Whether wrong boxes are left out instead of refused.
    """

    fields: frozenset[str] | None = None
    guess_target: bool = True
    exact: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    delimiter: str = ""
    lists: Mapping[str, int] = field(default_factory=dict)
    length: int = 64
    text_lines: bool = False
    image_size: tuple[int, int] | None = None
    max_pixels: int = 1 << 22
    drop_boxes: bool = False


@dataclass
class Source:
    """A source's fields, and what is known about them without options.

    Args:
        format: Format name, such as `CSV`.
        where: File and format, for messages, such as `data.csv (CSV)`.
        columns: Arrays with shape (N, …) by field; texts and files as `bytes` objects, times as int64 (seconds, or the
            source's unit). Missing numbers are NaN.
        target: Fields that are the target when no option names one.
        labels: Class names for an integer target or label names; () when they are the values themselves.
        task: The task, where the format has only one.
        splits: int8 index into SPLITS a sample; None when the source is not split.
        steps: Preprocessing that the format needs, such as image decoding.
        times: Time fields, which are no feature by default, with NumPy's unit; empty for a time of day.
        is_table: Whether the numbers are standardised by default.
        missing: Missing value count by field; fields without missing values may be omitted.
        integers: Integer fields that were read as float32.
        indexes: Columns with a table's row numbers, which were not read.
        leading_zeros: Integer fields of a CSV file with a leading zero, each with an example.
    """

    format: str
    where: str
    columns: dict[str, NDArray[Any]]
    target: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    task: str = ""
    splits: NDArray[np.int8] | None = None
    steps: tuple[Step, ...] = ()
    times: Mapping[str, str] = field(default_factory=dict)
    is_table: bool = False
    missing: dict[str, int] = field(default_factory=dict)
    integers: frozenset[str] = frozenset()
    indexes: tuple[str, ...] = ()
    leading_zeros: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


def guess_target(names: Sequence[str]) -> tuple[str, ...]:
    """Return the field with a name in `TARGETS`; () when there is none or more than one."""
    found = tuple(name for name in names if name.lower() in TARGETS)
    return found if len(found) == 1 else ()


def select_fields(where: str, request: SourceRequest, found: Sequence[str]) -> list[str]:
    """Return the fields that are needed, in source order.

    Args:
        where: File and format, for the message.
        request: The needed fields.
        found: The source fields.

    Raises:
        UserError: A field is missing.
    """
    missing = sorted(((request.fields or frozenset()) | request.exact | request.texts) - set(found))
    if missing:
        listed = ", ".join(found[:20]) + (f" and {len(found) - 20} more" if len(found) > 20 else "")
        close, hint = (
            suggest(missing[0], found, listed=False),
            "Name one of its fields, or rename the field in the file.",
        )
        if len(found) == 1 and (other := next((mark for mark in ";\t|" if mark in found[0]), "")):
            hint = f"Give the character between two cells: --delimiter {'tab' if other == TAB else repr(other)}."
        raise UserError(f"{where}: no field {missing[0]!r}, found {listed or 'none'}{close}", hint=hint)
    if request.fields is None:
        return [name for name in found if not is_index(name) or name in request.exact]
    guessed = guess_target(found) if request.guess_target else ()
    return [name for name in found if name in request.fields | request.optional or name in guessed]


def is_index(name: str) -> bool:
    """Return whether a column holds a table's row numbers as pandas writes them: without a name, or with its own."""
    return not name.strip() or name.startswith("__index_level_") or name == "Unnamed: 0"


def to_objects(values: Sequence[bytes]) -> NDArray[Any]:
    """Return a one-dimensional array of `bytes` objects."""
    import numpy as np

    array = np.empty(len(values), object)
    array[:] = values
    return array
