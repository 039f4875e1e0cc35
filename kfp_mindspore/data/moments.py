"""Moments in a column of texts: one format for the whole column, stated or found, as numbers in order of time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ISO = "iso"
"""ISO 8601: 2024-01-31, 2024-01-31T09:30:00Z."""
COUNT = "count"
"""A number with the same words around it in each row: 9d, week 9."""

_DATES = (
    *("%d.%m.%Y", "%m.%d.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y-%m-%d"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d"),
    *("%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%b %y", "%m/%Y", "%m.%Y", "%Y/%m", "%Y.%m", "%Y-%m"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%d. %b %Y", "%d. %B %Y", "%b %d, %Y", "%B %d, %Y"),
    *("%b %d %Y", "%B %d %Y", "%a, %d %b %Y", "%Y%m%d"),
)
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S")
_COUNT = re.compile(r"(\D*?)([-+]?\d+(?:\.\d+)?)(\D*)")
_ZONE = re.compile(r":\d\d[^-+]*(?:[zZ]|[-+]\d\d:?\d\d)$")
_EPOCH, _MICROSECOND = datetime(1970, 1, 1), timedelta(microseconds=1)
_STATE = "State the format: --time-format '%d.%m.%Y' (time_format=…), or write the moments as 2024-01-31."


@dataclass(frozen=True)
class MomentFormat:
    """A column's format.

    Args:
        text: `strptime`'s directives, `ISO` or `COUNT`.
        around: The words before and after a count.
    """

    text: str
    around: tuple[str, str] = ("", "")

    def parse(self, text: str) -> float:
        """Return a moment's place in time: microseconds since 1970, or the count.

        Raises:
            ValueError: The text has another format.
        """
        if self.text == COUNT:
            found = _COUNT.fullmatch(text.strip())
            if found is None or (found[1], found[3]) != self.around:
                raise ValueError(text)
            return float(found[2])
        if self.text == ISO:
            return _to_microseconds(datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text.strip())))
        return _to_microseconds(datetime.strptime(text.strip(), self.text))

    def is_zoned(self, text: str) -> bool:
        """Return whether a moment has its distance from UTC."""
        return self.text == ISO and _ZONE.search(text.strip()) is not None


def find_format(values: NDArray[Any], where: str, stated: str = "") -> MomentFormat:
    """Return the one format of a column of texts.

    Args:
        values: `bytes` objects with shape (N,).
        where: File, format and field, for messages.
        stated: `strptime`'s directives; empty to find the format.

    Raises:
        UserError: No format fits all texts, or several fit that give different moments. The message has two texts.
    """
    texts = _list_texts(values)
    candidates = [MomentFormat(stated)] if stated else _list_candidates(texts[0])
    failed = ""
    for text in texts:
        fitting = [one for one in candidates if _fits(one, text)]
        if not fitting:
            failed = text
            break
        candidates = fitting
    if failed and stated:
        first = next((text for text in texts if _fits(candidates[0], text)), "")
        also = f", others such as {first!r:.40} do" * bool(first)
        raise UserError(
            f"{where}: each must have the time_format {stated!r}, {failed!r:.40} does not{also}",
            hint="Correct the rows, or state their format: --time-format.",
        )
    if failed or not candidates:
        other = next((text for text in (failed, *texts) if text and text != texts[0]), texts[0])
        raise UserError(
            f"{where}: an order by time needs one known format of times in all rows, got {texts[0]!r:.40} and "
            f"{other!r:.40}",
            hint=_STATE,
        )
    _check_zones(candidates[0], texts, where)
    return _select(candidates, texts, where)


def parse_moments(values: NDArray[Any], found: MomentFormat, where: str) -> NDArray[Any]:
    """Return a column's moments as numbers in order of time.

    Args:
        values: `bytes` objects with shape (N,).
        found: The column's format.
        where: File, format and field, for messages.

    Raises:
        UserError: A text has another format.
    """
    import numpy as np

    parsed: dict[bytes, float] = {}
    for value in set(values.tolist()):
        text = value.decode(errors="replace")
        try:
            parsed[value] = found.parse(text)
        except (ValueError, OverflowError):
            raise UserError(
                f"{where}: must have the time format {found.text!r}, got {text!r:.40}", hint=_STATE
            ) from None
    return np.array([parsed[value] for value in values.tolist()], np.float64)


def to_order(values: NDArray[Any], where: str, stated: str = "") -> NDArray[Any]:
    """Return numbers in order of time for a column: texts by their format, numbers as they are.

    Raises:
        UserError: The texts have no single format, or the column holds neither texts nor numbers.
    """
    if values.ndim != 1:
        raise UserError(f"{where}: an order by time needs one value a row, got shape {values.shape}")
    if values.dtype != object:
        if stated:
            raise UserError(
                f"{where}: time_format is for texts, the field holds {values.dtype}",
                hint="Leave time_format out; whole numbers such as 31012024 are read as texts by --texts FIELD.",
            )
        return values
    return parse_moments(values, find_format(values, where, stated), where)


def describe_moments(
    values: NDArray[Any], order: NDArray[Any], splits: Mapping[str, NDArray[Any]], unit: str = ""
) -> dict[str, list[str]]:
    """Return each split's first and last moment as the column has them.

    Args:
        values: The column.
        order: Its moments as numbers.
        splits: Each split's sample indexes.
        unit: NumPy's unit of a column with times as integers; empty for other columns.
    """
    return {
        split: [show_moment(values[chosen[place]], unit) for place in (order[chosen].argmin(), order[chosen].argmax())]
        for split, chosen in splits.items()
        if len(chosen)
    }


def show_moment(value: Any, unit: str = "") -> str:
    """Return a moment as text."""
    import numpy as np

    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(np.datetime64(int(value), unit)) if unit else f"{value:.15g}"


def _list_texts(values: NDArray[Any]) -> list[str]:
    """Return the different texts, in the order of their first rows."""
    return [value.decode(errors="replace") for value in dict.fromkeys(values.tolist())]


def _list_candidates(text: str) -> list[MomentFormat]:
    found = [MomentFormat(ISO)]
    found += [MomentFormat(date + time) for date in _DATES for time in _TIMES]
    if (count := _COUNT.fullmatch(text.strip())) is not None:
        found.append(MomentFormat(COUNT, (count[1], count[3])))
    return found


def _fits(candidate: MomentFormat, text: str) -> bool:
    try:
        candidate.parse(text)
    except (ValueError, OverflowError):
        return False
    return True


def _check_zones(candidate: MomentFormat, texts: Iterable[str], where: str) -> None:
    zones: dict[bool, str] = {}
    for text in texts:
        zones.setdefault(candidate.is_zoned(text), text)
    if len(zones) > 1:
        raise UserError(
            f"{where}: times with and without a zone have no order, got {zones[True]!r:.40} and {zones[False]!r:.40}",
            hint="Write the zone in each row, or in none.",
        )


def _select(candidates: list[MomentFormat], texts: list[str], where: str) -> MomentFormat:
    """Return the first of the formats that fit, unless two give different orders."""
    places = [_rank([one.parse(text) for text in texts]) for one in candidates]
    for other, place in zip(candidates[1:], places[1:], strict=True):
        if place == places[0]:
            continue
        examples = [text for text, one, two in zip(texts, places[0], place, strict=True) if one != two][:2]
        raise UserError(
            f"{where}: {' and '.join(f'{text!r:.40}' for text in examples)} have two orders: by "
            f"{_name(candidates[0])} and by {_name(other)}",
            hint=f"State the format: --time-format {candidates[0].text!r} or {other.text!r} (time_format=…).",
        )
    return candidates[0]


def _rank(moments: list[float]) -> list[int]:
    ranks = {moment: rank for rank, moment in enumerate(sorted(set(moments)))}
    return [ranks[moment] for moment in moments]


def _name(found: MomentFormat) -> str:
    return "a plain number" if found.text == COUNT else found.text


def _to_microseconds(moment: datetime) -> float:
    if moment.tzinfo is not None:
        moment = moment.astimezone(timezone.utc).replace(tzinfo=None)
    return float((moment - _EPOCH) // _MICROSECOND)
