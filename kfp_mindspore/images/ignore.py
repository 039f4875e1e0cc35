"""`.dockerignore` as Docker reads it.

pathspec implements git's rules, which differ: there `name` matches in every folder, here only at the root. docker's own
Python matcher would bring the whole docker library to builds that need no daemon.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kfp_mindspore.errors import UserError

IGNORE_FILE = ".dockerignore"
# Without a .dockerignore: what no image wants, and what would change the digest without a change of the sources.
DEFAULT_PATTERNS = (
    ".git",
    "**/__pycache__",
    "**/*.pyc",
    "**/.ipynb_checkpoints",
    "**/.mypy_cache",
    "**/.pytest_cache",
    "**/.ruff_cache",
    ".venv",
    "venv",
)


@dataclass(frozen=True)
class _Pattern:
    text: str
    keeps: bool
    expression: re.Pattern[str]


class IgnoreRules:
    """Patterns in their order; the last that matches a path, or a folder above it, decides.

    Args:
        lines: The lines of a `.dockerignore`.
        name: What the lines are from, for messages.

    Raises:
        UserError: A line is no pattern; the message has its number.
    """

    def __init__(self, lines: Iterable[str], *, name: str = IGNORE_FILE) -> None:
        self._patterns = [
            pattern
            for number, line in enumerate(lines, start=1)
            if (pattern := _parse(line, f"{name}, line {number}")) is not None
        ]
        self._keeps_any = any(pattern.keeps for pattern in self._patterns)

    def ignores(self, path: str) -> bool:
        """Return whether a file or folder is left out.

        Args:
            path: Relative path with `/`.
        """
        ignored = False
        parts = path.split("/")
        candidates = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        for pattern in self._patterns:
            # Only a pattern that changes the answer needs to be tried.
            if pattern.keeps == ignored and any(pattern.expression.fullmatch(name) for name in candidates):
                ignored = not pattern.keeps
        return ignored

    def prunes(self, folder: str) -> bool:
        """Return whether nothing below a folder can be kept, so that it need not be read."""
        return not self._keeps_any and self.ignores(folder)


def read_ignore_rules(root: Path) -> IgnoreRules:
    """Return the rules of a folder's `.dockerignore`, or `DEFAULT_PATTERNS` when it has none.

    Raises:
        UserError: It cannot be read, or a line is no pattern.
    """
    file = root / IGNORE_FILE
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return IgnoreRules(DEFAULT_PATTERNS)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error})") from error
    return IgnoreRules(text.splitlines(), name=str(file))


def _parse(line: str, where: str) -> _Pattern | None:
    text = "" if line.startswith("#") else line.strip()
    if not text:
        return None
    keeps = text.startswith("!")
    text = text[1:].strip() if keeps else text
    if not text:
        raise UserError(f"{where}: a pattern must stand after !")
    text = posixpath.normpath(text)
    text = text.lstrip("/") or "."
    try:
        return _Pattern(text, keeps, re.compile(_translate(text), re.DOTALL))
    except re.error as error:
        raise UserError(f"{where}: {text!r} is no pattern ({error})") from None


def _translate(text: str) -> str:
    parts: list[str] = []
    position, in_class = 0, False
    while position < len(text):
        character = text[position]
        position += 1
        if in_class:
            in_class = character != "]"
            parts.append(character)
        elif text.startswith("**", position - 1):
            position += 1
            position += text.startswith("/", position)
            parts.append(".*" if position >= len(text) else "(?:.*/)?")
        elif character == "*":
            parts.append("[^/]*")
        elif character == "?":
            parts.append("[^/]")
        elif character == "[":
            in_class = True
            parts.append(character)
        elif character == "\\" and position < len(text):
            parts.append(re.escape(text[position]))
            position += 1
        else:
            parts.append(re.escape(character))
    return "".join(parts)
