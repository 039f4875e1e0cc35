from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.golden.goldens import ROOT, list_goldens

GOLDENS = list_goldens()


@pytest.mark.parametrize("file", GOLDENS, ids=lambda file: str(file.relative_to(ROOT)))
def test_golden_file_is_up_to_date(file: Path) -> None:
    expected = GOLDENS[file]()
    found = file.read_text() if file.is_file() else ""
    diff = difflib.unified_diff(found.splitlines(), expected.splitlines(), "committed", "rendered", lineterm="")
    assert found == expected, "\n".join([*diff, "", f"{file.relative_to(ROOT)} is out of date: run `make golden`"])
