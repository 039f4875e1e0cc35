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


def read_cases(path: Path) -> tuple[list[Case], float]:
    """Return the tests of a JUnit file, and the seconds that the run took."""
    (suite,) = ElementTree.parse(path).getroot().iter("testsuite")
    cases = suite.iter("testcase")
    return [Case(c.get("classname", ""), c.get("name", ""), float(c.get("time", 0))) for c in cases], float(
        suite.get("time", 0)
    )


def write_target(target: str, cases: list[Case], seconds: float) -> str:
    """Return the sums of a target's folders and its slowest tests as Markdown."""
    sums, counts = Counter[str](), Counter(case.folder for case in cases)
    for case in cases:
        sums[case.folder] += case.seconds
    lines = [
        f"`make {target}`: {len(cases)} tests, {seconds / 60:.1f} minutes.",
        "",
        "| folder | tests | s |",
        "|---|---|---|",
    ]
    lines += [f"| {folder} | {counts[folder]} | {total:.0f} |" for folder, total in sums.most_common() if total >= 1]
    slowest = sorted(cases, key=lambda case: -case.seconds)[:SLOWEST]
    lines += ["", "| slowest tests | s |", "|---|---|"]
    lines += [f"| {case.module.replace('.', '/')}.py::{case.name} | {case.seconds:.0f} |" for case in slowest]
    return "\n".join([*lines, "", ""])


def main(folder: Path) -> None:
    """Replace the table, and print the tests without the marker that are over its limit."""
    page = PAGE.read_text()
    before, rest = page.split(START)
    _, after = rest.split(END)
    parts = [f"Seconds on {os.cpu_count()} cores, with fixtures.\n\n"]
    for target in ("test", "test-slow"):
        path = folder / f"{target}.xml"
        if not path.exists():
            sys.exit(f"{path}: missing; run make {target}")
        cases, seconds = read_cases(path)
        parts.append(write_target(target, cases, seconds))
        if target == "test":
            for case in cases:
                if case.seconds > LIMIT:
                    print(f"over {LIMIT} s, mark it slow: {case.module}::{case.name} {case.seconds:.0f} s")
    PAGE.write_text(before + START + "".join(parts) + END + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
