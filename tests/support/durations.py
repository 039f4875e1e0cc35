"""Write the table of test durations in CONTRIBUTING.md from JUnit files: `python -m tests.support.durations FOLDER`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
START, END = "<!-- durations -->\n", "<!-- end of durations -->\n"
LIMIT = 15  # seconds of a test without the marker `slow`, see CONTRIBUTING.md
SLOWEST = 10


class Case(NamedTuple):
    """A test with its seconds, which include the fixtures that it was the first to use."""

    module: str
    name: str
    seconds: float

    @property
    def folder(self) -> str:
        """Return the first folder, or the first two of tests, for example `tests/unit`; tests/unit/x for unit tests."""
        parts = self.module.split(".")
        return "/".join(parts[: 3 if parts[:2] == ["tests", "unit"] and not parts[2].startswith("test_") else 2])


def read_cases(path: Path) -> list[Case]:
    """Return the tests of a JUnit file."""
    cases = ElementTree.parse(path).getroot().iter("testcase")
    return [Case(case.get("classname", ""), case.get("name", ""), float(case.get("time", 0))) for case in cases]


def write_target(target: str, cases: list[Case]) -> str:
    """Return the sums of a target's folders and its slowest tests as Markdown."""
    sums, counts = Counter[str](), Counter(case.folder for case in cases)
    for case in cases:
        sums[case.folder] += case.seconds
    total = sum(sums.values())
    lines = [f"`make {target}`: {len(cases)} tests, {total:.0f} s.", "", "| folder | tests | s |", "|---|---|---|"]
    lines += [f"| {folder} | {counts[folder]} | {part:.0f} |" for folder, part in sums.most_common() if part >= 1]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines += ["", "| slowest tests | s |", "|---|---|"]
    lines += [f"| {case.module.replace('.', '/')}.py::{case.name} | {case.seconds:.0f} |" for case in slowest]
    return "\n".join([*lines, "", ""])


def main(folder: Path) -> None:
    """Replace the table, and print the tests without the marker that are over its limit."""
    page = PAGE.read_text()
    before, rest = page.split(START)
    _, after = rest.split(END)
    parts = [f"Seconds of processes on {os.cpu_count()} cores, with fixtures.\n\n"]
    for target in ("test", "test-slow"):
        path = folder / f"{target}.xml"
        if not path.exists():
            print(f"{path}: missing, left out; run make {target}")
            continue
        cases = read_cases(path)
        parts.append(write_target(target, cases))
        if target == "test":
            for case in cases:
                if case.seconds > LIMIT:
                    print(f"over {LIMIT} s, mark it slow: {case.module}::{case.name} {case.seconds:.0f} s")
    PAGE.write_text(before + START + "".join(parts) + END + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
