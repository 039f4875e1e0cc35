"""Write the table of test durations in CONTRIBUTING.md, and the lists of slow tests and long files, from JUnit files.

python -m tests.support.durations FOLDER
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
SLOW_TESTS = ROOT / "tests" / "slow_tests.txt"
LONG_FILES = ROOT / "tests" / "long_files.txt"
START, END = "<!-- durations -->\n", "<!-- end of durations -->\n"
LIMIT = 2  # seconds of a test without the marker `slow`, see CONTRIBUTING.md
LONG = 30  # seconds of a file that starts before the others
SLOWEST = 10
# What a contributor waits for: one whole lifecycle and one notebook.
WAITED_FOR = ("tests/local/test_digits_lifecycle.py", "tests/local/test_notebook.py")


class Case(NamedTuple):
    """A test with its seconds, which include the fixtures that it was the first to use; `call` excludes fixtures."""

    module: str
    name: str
    seconds: float
    call: float

    @property
    def folder(self) -> str:
        """Return the first folder, or the first two of tests, for example `tests/unit`; tests/unit/x for unit tests."""
        parts = self.module.split(".")
        return "/".join(parts[: 3 if parts[:2] == ["tests", "unit"] and not parts[2].startswith("test_") else 2])

    @property
    def node(self) -> str:
        """Return pytest's node ID, for example `tests/unit/x/test_y.py::TestY::test_z[1]`."""
        parts = self.module.split(".")
        size = next(
            (size for size in range(len(parts), 0, -1) if Path(ROOT, *parts[:size]).with_suffix(".py").exists()), 0
        )
        return "::".join(["/".join(parts[:size]) + ".py", *parts[size:], self.name])


def read_cases(path: Path) -> list[Case]:
    """Return the tests of a JUnit file."""
    cases = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        # Set by conftest.py; a skipped test has no call.
        call = case.find("properties/property[@name='call']")
        seconds = float(case.get("time", 0))
        cases.append(
            Case(
                case.get("classname", ""),
                case.get("name", ""),
                seconds,
                0.0 if call is None else float(call.get("value", 0)),
            )
        )
    return cases


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


def read_slow_tests() -> set[str]:
    """Return the node IDs of tests that a measured run found over the limit."""
    return set(SLOW_TESTS.read_text().splitlines())


def read_long_files() -> dict[str, int]:
    """Return the paths of the files that start first, each with its place."""
    return {path: place for place, path in enumerate(LONG_FILES.read_text().splitlines())}


def list_long_files(cases: list[Case]) -> list[str]:
    """Return the paths of long files, the longest first."""
    sums = Counter[str]()
    for case in cases:
        sums[case.node.partition("::")[0]] += case.seconds
    return [path for path, seconds in sums.most_common() if seconds > LONG]


def main(folder: Path) -> None:
    """Replace the table, and list the slow tests and the long files."""
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
            # Without fixtures: moving a shared fixture's first test would compute the fixture for both targets.
            over = {case.node for case in cases if case.call > LIMIT and not case.node.startswith(WAITED_FOR)}
            SLOW_TESTS.write_text("".join(f"{node}\n" for node in sorted(read_slow_tests() | over)))
        else:
            LONG_FILES.write_text("".join(f"{path}\n" for path in list_long_files(cases)))
    PAGE.write_text(before + START + "".join(parts) + END + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
