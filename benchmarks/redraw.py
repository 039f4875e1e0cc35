"""Run every benchmark and redraw docs/benchmarks.md with its plots.

`python benchmarks/redraw.py [--quick] [NAME …]`: only the named ones are run; what the page says of the others stays.
Results are kept in docs/benchmarks/<name>.json, so that a figure on the page can be traced to its samples.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import build_parser

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
RESULTS = HERE.parent / "docs" / "benchmarks"
BENCHMARKS = ("startup", "training", "accuracy", "distributed", "lifecycle")
INTRODUCTION = """# Benchmarks

Made by `make bench`: each benchmark runs its peer beside it, in turn, in the same run. What is quoted is the median of
the
rounds' ratios, with the smallest and the largest. The machine had {cores} cores and was shared and noisy; versions:
{versions}.
"""


def run(name: str, quick: bool) -> dict[str, Any]:
    """Run one benchmark and return the JSON of its last line."""
    print(f"{name} …", flush=True)
    done = subprocess.run(
        [sys.executable, str(HERE / f"{name}.py"), *(["--quick"] if quick else [])],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(result, dict)
    return result


def draw(name: str, result: dict[str, Any]) -> None:
    """Draw each target's median, its spread and its goal as docs/benchmarks/<name>.svg."""
    import matplotlib as mpl

    mpl.use("svg")
    # The same figures give the same file.
    mpl.rcParams["svg.hashsalt"] = name
    import matplotlib.pyplot as plt

    targets = result["targets"]
    figure, axis = plt.subplots(figsize=(8, 0.7 + 0.55 * len(targets)))
    for row, target in enumerate(targets):
        low, high = target["spread"]
        color = "#777777" if target["met"] is None else "#2e7d32" if target["met"] else "#c62828"
        axis.barh(row, target["ratio"], color=color, alpha=0.75, height=0.5)
        axis.plot([low, high], [row, row], color="black", linewidth=1.5)
        if target["goal"] is not None:
            axis.plot([target["goal"]] * 2, [row - 0.4, row + 0.4], color="black", linestyle=":")
    axis.set_yticks(range(len(targets)), [target["name"] for target in targets], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("bar: median, line: smallest to largest, dots: goal", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / f"{name}.svg", bbox_inches="tight", metadata={"Date": None}, facecolor="white")
    plt.close(figure)


def describe(name: str, result: dict[str, Any]) -> str:
    """Return one benchmark's part of the page."""
    lines = [f"## {name}", "", f"`python benchmarks/{name}.py`", ""]
    lines += ["| | median | spread | goal | met |", "|---|---|---|---|---|"]
    for target in result["targets"]:
        met = {None: "", True: "yes", False: "**no**"}[target["met"]]
        goal = "" if target["goal"] is None else f"{target['goal']:g}"
        low, high = target["spread"]
        lines.append(f"| {target['name']} | {target['ratio']:.3g} | {low:.3g} to {high:.3g} | {goal} | {met} |")
    return "\n".join([*lines, "", f"![{name}](benchmarks/{name}.svg)", ""])


def main() -> None:
    parser = build_parser(__doc__ or "")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(BENCHMARKS)} [default: all]"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    parts, machine = [], {}
    for name in BENCHMARKS:
        file = RESULTS / f"{name}.json"
        if name in (arguments.names or BENCHMARKS):
            file.write_text(json.dumps(run(name, arguments.quick), indent=1, sort_keys=True) + "\n")
        if file.is_file():
            result = json.loads(file.read_text())
            machine = result["machine"]
            draw(name, result)
            parts.append(describe(name, result))
    versions = ", ".join(f"{package} {version}" for package, version in sorted(machine["versions"].items()))
    PAGE.write_text("\n".join([INTRODUCTION.format(cores=machine["cores"], versions=versions), *parts]))


if __name__ == "__main__":
    main()
