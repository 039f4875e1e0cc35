"""Run every benchmark and redraw docs/benchmarks.md with its plots.

`python benchmarks/redraw.py [--quick] [NAME …]`: only the named ones are run; what the page says of the others stays.
With `--draw` none is run.
Results are kept in docs/benchmarks/<name>.json, so that a figure on the page can be traced to its samples.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import build_parser
from operator_answers import draw_operator, tabulate_operator
from pictures import draw_servers, draw_targets

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
RESULTS = HERE.parent / "docs" / "benchmarks"
BENCHMARKS = ("startup", "training", "accuracy", "distributed", "lifecycle", "serving", "msjob_operator", "images")
INTRODUCTION = """# Benchmarks

Made by `make bench`: each benchmark runs its peer beside it, in turn, in the same run. What is quoted is the median of
the rounds' ratios, with the smallest and the largest. The machine had {cores} cores; it was shared and noisy, except
where [serving](performance.md), [the operator](operator.md#figures) or [images](images.md#figures) says that it was
quiet. Versions: {versions}.
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


def draw(name: str, result: dict[str, Any]) -> list[Path]:
    """Draw a result; return its pictures."""
    if name == "serving":
        return draw_servers(name, result["raw"], RESULTS)
    if name == "msjob_operator":
        return draw_operator(name, result["raw"], RESULTS)
    return draw_targets(name, result["targets"], RESULTS)


def tabulate(raw: dict[str, Any]) -> list[str]:
    """Return what each server did in each scenario as a table of medians."""
    lines = ["", "| | | requests/s | p50, ms | p99, ms | CPU, ms a request |", "|---|---|---|---|---|---|"]
    figures = ("requests_per_second", "p50_ms", "p99_ms", "cpu_ms_per_request")
    servers = dict(raw["servers"])
    for model, samples in raw["models"].items():
        for scenario, title in raw["scenarios"]:
            for server in (name for name in servers if name in samples.get(scenario, {})):
                rounds = samples[scenario][server]
                medians = (statistics.median(rounds[name]) if name in rounds else None for name in figures)
                cells = (
                    "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in medians
                )
                lines.append(f"| {model}, {title} | {servers[server]} | {' | '.join(cells)} |")
    lines += ["", "| | | start to ready, s | peak memory, MB |", "|---|---|---|---|"]
    for model, samples in raw["models"].items():
        for server in (name for name in servers if name in samples["memory"]):
            start = statistics.median(samples["start"][server]["seconds"])
            peak = statistics.median(samples["memory"][server]["peak_mb"])
            lines.append(f"| {model} | {servers[server]} | {start:.1f} | {peak:,.0f} |")
    return lines


def describe(name: str, result: dict[str, Any], pictures: Sequence[Path]) -> str:
    """Return one benchmark's part of the page."""
    lines = [f"## {name}", "", f"`python benchmarks/{name}.py`", ""]
    lines += ["| | median | spread | goal | met |", "|---|---|---|---|---|"]
    for target in result["targets"]:
        met = {None: "", True: "yes", False: "**no**"}[target["met"]]
        goal = "" if target["goal"] is None else f"{target['goal']:g}"
        low, high = target["spread"]
        lines.append(f"| {target['name']} | {target['ratio']:.3g} | {low:.3g} to {high:.3g} | {goal} | {met} |")
    if name == "serving":
        lines += tabulate(result["raw"])
    if name == "msjob_operator":
        lines += tabulate_operator(result["raw"])
    for picture in pictures:
        lines += ["", f"![{picture.stem}](benchmarks/{picture.name})"]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = build_parser(__doc__ or "")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which to run: {', '.join(BENCHMARKS)} [default: all]"
    )
    parser.add_argument("--draw", action="store_true", help="run nothing, draw the results that are there")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    parts, machine = [], {}
    for name in BENCHMARKS:
        file = RESULTS / f"{name}.json"
        if name in (arguments.names or BENCHMARKS) and not arguments.draw:
            file.write_text(json.dumps(run(name, arguments.quick), indent=1, sort_keys=True) + "\n")
        if file.is_file():
            result = json.loads(file.read_text())
            machine = result["machine"]
            parts.append(describe(name, result, draw(name, result)))
    versions = ", ".join(f"{package} {version}" for package, version in sorted(machine["versions"].items()))
    PAGE.write_text("\n".join([INTRODUCTION.format(cores=machine["cores"], versions=versions), *parts]))


if __name__ == "__main__":
    main()
