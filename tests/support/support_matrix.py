"""Measured versions: docs/support.json, and its tables in docs/support.md."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parents[2] / "docs"
RECORD = _DOCS / "support.json"
PAGE = _DOCS / "support.md"
Row = dict[str, Any]


def read_record() -> dict[str, list[Row]]:
    """Return the measured versions by section, the newest first."""
    record: dict[str, list[Row]] = json.loads(RECORD.read_text())
    return record


def record(section: str, version: str, cells: Mapping[str, str]) -> None:
    """Replace or add the row of a version, dated today, and update the page.

    Args:
        section: `kubernetes` or `mindspore`.
        version: The version measured.
        cells: Results by column, such as `passed` and `failed`.
    """
    sections = read_record()
    rows = [row for row in sections.get(section, []) if row["version"] != version]
    rows.append({"version": version, "date": datetime.date.today().isoformat(), **cells})
    rows.sort(key=lambda row: [int(part) for part in row["version"].split(".")], reverse=True)
    sections[section] = rows
    RECORD.write_text(json.dumps(sections, indent=2) + "\n")
    PAGE.write_text(update_page(PAGE.read_text(), sections))


def update_page(page: str, sections: Mapping[str, Sequence[Row]]) -> str:
    """Return the page with the sections' tables between their markers."""
    for section, rows in sections.items():
        start, end = f"<!-- {section} -->\n", f"<!-- end of {section} -->\n"
        before, rest = page.split(start)
        _, after = rest.split(end)
        page = f"{before}{start}{format_table(rows)}{end}{after}"
    return page


def format_table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table; a cell that no row has is `not run`."""
    columns = [*dict.fromkeys(key for row in rows for key in row if key not in ("version", "date")), "date"]
    lines = [["version", *columns], ["---"] * (len(columns) + 1)]
    lines += [[row["version"], *(row.get(column, "not run") for column in columns)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
