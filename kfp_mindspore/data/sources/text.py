"""Text files: character windows for a language model, or a text a line."""

from __future__ import annotations

from pathlib import Path

from kfp_mindspore.data.sources.base import Source, SourceRequest, to_objects
from kfp_mindspore.errors import UserError


def read_text(path: Path, request: SourceRequest) -> Source:
    """Read a UTF-8 file as windows or lines, see `build_windows`.

    Raises:
        UserError: The file is not UTF-8 or too short.
    """
    where = f"{path.name} (text)"
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error})") from None
    return build_windows(text, where, request)


def build_windows(text: str, where: str, request: SourceRequest) -> Source:
    """Return a text's windows or lines.

    As windows, the field `text` has `length` characters and `next` the same number, from one character later on; the
    windows do not overlap. As lines, `text` has the lines that are not empty.

    Args:
        text: The text.
        where: File and format, for messages.
        request: Whether lines are samples, and the window length.

    Raises:
        UserError: The text is too short.
    """
    if request.text_lines:
        lines = [line.encode() for line in text.splitlines() if line.strip()]
        if not lines:
            raise UserError(f"{where}: has no lines")
        return Source("text", where, {"text": to_objects(lines)})
    length = request.length
    starts = range(0, len(text) - length, length)
    if len(starts) < 3:
        raise UserError(f"{where}: {len(text)} characters are too few for three windows of {length} and one more")
    columns = {
        "text": to_objects([text[start : start + length].encode() for start in starts]),
        "next": to_objects([text[start + 1 : start + length + 1].encode() for start in starts]),
    }
    return Source("text", where, columns, target=("next",), task="language_model")
