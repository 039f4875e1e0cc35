"""What the operator's measurements say: its targets, and its part of docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from delays import summarise
from harness import Target, build_target, pair_ratios
from pictures import LIMIT, OURS, PEER, prepare, save

WAYS = {
    "ours": "MSJobs, the operator",
    "job-default": "Indexed Jobs, kube-controller-manager, default limits",
    "job-raised": "Indexed Jobs, kube-controller-manager, limits raised",
    "objects": "a plain client: jobs, Services and pods",
    "pods": "a plain client: pods alone",
}
_LIMITS = ("objects", "pods")
_SIZE_LIMIT_MB = 250


def judge(raw: Mapping[str, Any]) -> list[Target]:
    """Answer the questions that were measured."""
    targets: list[Target] = []
    if rates := raw.get("rate"):
        targets += _judge_rates(rates)
    if delays := raw.get("delay"):
        targets += _judge_delays(delays)
    if calls := raw.get("calls"):
        targets.append(build_target("writes a job beside pods, Service and events", [calls["own_writes_per_job"]], 3))
        targets.append(build_target("writes a job in all", [calls["writes_per_job"]]))
        seconds = calls["idle_seconds"]
        targets.append(build_target(f"requests in {seconds:g} s without events", [calls["idle_polls"]], 0))
    if reach := raw.get("reach"):
        targets += _judge_reach(reach)
    if sizes := raw.get("size"):
        targets += _judge_sizes(sizes)
    return targets


def _judge_rates(rates: Mapping[str, Any]) -> list[Target]:
    pods = {way: [sample["pods_per_second"] for sample in samples] for way, samples in rates.items()}

    def compare(way: str, title: str, goal: float | None) -> Target:
        return build_target(f"pods/s / {title}", pair_ratios(pods["ours"], pods[way]), goal, at_least=True)

    return [
        compare("job-default", "Job controller's, default limits", 4),
        compare("job-raised", "Job controller's, limits raised", None),
        compare("pods", "plain creation of pods", 0.3),
        compare("objects", "plain creation of jobs, Services and pods", None),
        build_target("jobs/s", [sample["jobs_per_second"] for sample in rates["ours"]]),
        build_target("pods/s", pods["ours"]),
    ]


def _judge_delays(delays: Mapping[str, Any]) -> list[Target]:
    targets = []
    for who, title in (("ours", ""), ("job-default", "Job controller: ")):
        for event, action in (("created", "a job to its last pod"), ("running", "the last pod runs to the job does")):
            if values := delays.get(who, {}).get(event):
                found = summarise(values)
                targets += [build_target(f"{title}{action}, {name}, ms", [found[name]]) for name in ("p50", "p99")]
    return targets


def _judge_reach(found: Mapping[str, Any]) -> list[Target]:
    seconds = {way: [sample[way] for sample in found["rounds"]] for way in ("ours", "selectors")}
    what = f"{found['gangs']} gangs at once: seconds until all Services lead to their schedulers"
    return [
        build_target(what, seconds["ours"]),
        build_target(f"{what}, by selectors", seconds["selectors"]),
        build_target("by selectors / by the operator", pair_ratios(seconds["selectors"], seconds["ours"])),
    ]


def _judge_sizes(found: Mapping[str, Any]) -> list[Target]:
    sizes, restart = found["sizes"], found["restart"]
    empty, full = sizes[0], sizes[-1]
    jobs = full["jobs"]
    kilobytes = 1024 * (full["resident_mb"] - empty["resident_mb"]) / jobs
    idle = [size["idle_cpu_percent"] for size in (*sizes, restart)]
    return [
        build_target(f"memory, KB a job, of {jobs:,}", [kilobytes], 20),
        build_target(f"memory with {jobs:,} jobs, MB", [full["resident_mb"]], _SIZE_LIMIT_MB),
        build_target("idle CPU, % of a core, at every size", idle, 2, worst=True),
        build_target(f"restart with {jobs:,} jobs: seconds to act", [restart["ready_seconds"]]),
        build_target(f"restart with {jobs:,} jobs: seconds to rest", [restart["steady_seconds"]]),
        build_target(f"restart with {jobs:,} jobs: writes", [restart["writes"]], 0),
    ]


def tabulate_operator(raw: Mapping[str, Any]) -> list[str]:
    """Return tables of the rates with the CPU that each part took, of the requests, and of memory by jobs."""
    lines: list[str] = []
    if rates := raw.get("rate"):
        parts = ("kube-apiserver", "etcd", "kube-controller-manager", "operator", "client")
        heads = ["jobs", "pods/s", "load average", f"CPU, ms a job: {parts[0]}", *parts[1:]]
        lines += ["", f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
        for way, title in WAYS.items():
            samples = rates[way]
            figures = ("jobs", "pods_per_second", "load_average")
            cells = [_format(statistics.median(sample[figure] for sample in samples)) for figure in figures]
            for part in parts:
                values = [sample["cpu_ms_per_job"][part] for sample in samples if part in sample["cpu_ms_per_job"]]
                cells.append(_format(statistics.median(values)) if values else "")
            lines.append(f"| {title} | {' | '.join(cells)} |")
    if prices := raw.get("price"):
        parts = ("kube-apiserver", "etcd", "kube-controller-manager")
        lines += ["", f"| one request | CPU, ms: {' | '.join(parts)} |", f"|---|{'---|' * len(parts)}"]
        for request in dict.fromkeys(row["request"] for row in prices["rows"]):
            costs = [row["cpu_ms"] for row in prices["rows"] if row["request"] == request]
            cells = [_format(statistics.median(cost[part] for cost in costs)) for part in parts]
            lines.append(f"| {request} | {' | '.join(cells)} |")
    if calls := raw.get("calls"):
        lines += ["", "| the operator's requests | a job |", "|---|---|"]
        lines += [f"| {request} | {count:.3g} |" for request, count in calls["per_job"].items()]
    if found := raw.get("size"):
        lines += ["", "| jobs | memory, MB | at most | idle CPU, % of a core |", "|---|---|---|---|"]
        rows = [(f"{size['jobs']:,}", size) for size in found["sizes"]]
        rows.append((f"{found['restart']['jobs']:,}, restarted", found["restart"]))
        for title, size in rows:
            figures = (size["resident_mb"], size["peak_mb"], size["idle_cpu_percent"])
            lines.append(f"| {title} | {' | '.join(_format(figure) for figure in figures)} |")
    return lines


def draw_operator(name: str, raw: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw pods/s of each way to make them; return the pictures.

    Args:
        name: The benchmark's.
        raw: What benchmarks/msjob_operator.py keeps.
        directory: Where the files go.
    """
    if not (rates := raw.get("rate")):
        return []
    plt = prepare(name)
    figure, axis = plt.subplots(figsize=(8, 2.6))
    highest = 0.0
    for row, way in enumerate(WAYS):
        values = [sample["pods_per_second"] for sample in rates[way]]
        highest = max(highest, *values)
        axis.barh(row, statistics.median(values), color=_choose_color(way), height=0.6)
        axis.plot([min(values), max(values)], [row, row], color="black", linewidth=1)
        axis.text(max(values), row, f"  {statistics.median(values):,.0f}", va="center", fontsize=8)
    axis.set_yticks(range(len(WAYS)), list(WAYS.values()), fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.12 * highest)
    axis.set_xlabel("pods/s; bar: median, line: smallest to largest", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    file = directory / f"{name}.svg"
    save(figure, file)
    return [file]


def _choose_color(way: str) -> str:
    return OURS if way == "ours" else LIMIT if way in _LIMITS else PEER


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
