"""Standard streams that take any text: under an ASCII locale, a progress line with `…` would end a training."""

from __future__ import annotations

import io
import sys

_SAMPLE = "…→"


def escape_unprintable() -> None:
    r"""Write what a standard stream's encoding lacks as an escape, `\u2026`, instead of raising UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            try:
                _SAMPLE.encode(stream.encoding, stream.errors or "strict")
            except UnicodeEncodeError:
                stream.reconfigure(errors="backslashreplace")
