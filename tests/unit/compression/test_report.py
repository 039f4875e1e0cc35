"""A compression's result as JSON and as a report."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.compression.groups import Left
from kfp_mindspore.compression.options import CompressionOptions
from kfp_mindspore.compression.report import render_report
from kfp_mindspore.compression.result import CompressionResult, ParameterChange, Round, Sizes, Speedup

RESULT = CompressionResult(
    directory=Path("out/small"),
    options=CompressionOptions(method="l1", target="flops", max_accuracy_lost=0.02),
    metric="accuracy",
    split="validation",
    value_before=0.97,
    value=0.96,
    lost=0.01,
    passed=True,
    before=Sizes(12_000, 40_000, 48_000, {1: 0.002, 32: 0.03}),
    after=Sizes(3_000, 10_000, 12_000, {1: 0.001, 32: 0.01}),
    layers=(ParameterChange("stem.weight", (8, 1, 3, 3), (2, 1, 3, 3), 1_152, 288, 72),),
    left=(Left("head", "the network's output"),),
    rounds=(Round(0.8, 0.81, 0.9, False), Round(0.7, 0.75, 0.96, True)),
    speedups={1: Speedup(2.0, 1.95, 2.05), 32: Speedup(3.0, 1.0, 4.0)},
)


def read_text(result: CompressionResult) -> str:
    """Return the report's text without tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", render_report(result))).replace("\N{MULTIPLICATION SIGN}", "x")


@pytest.mark.parametrize(
    "text",
    [
        "accuracy 0.9600, 75.0 % fewer parameters: passed",
        "on the split validation was 0.9700; it lost 0.0100, allowed is a loss of 0.02",
        "Method l1, weights stored as float32",
        "parameters 12,000 3,000 -75.0 %",
        "FLOPs of a sample 40,000 10,000 -75.0 %",
        "bytes of weights 48,000 12,000 -75.0 %",
        "milliseconds at batch 1 2.000 1.000 2.00 times as fast (1.95 to 2.05 in 5 repeats)",
        "milliseconds at batch 32 30.000 10.000 speed unknown: 1.00 to 4.00 in 5 repeats",
        "flops cut",
        "1 81.0 % 0.9000 not met 2 75.0 % 0.9600 passed",
        "stem.weight 8 x 1 x 3 x 3 2 x 1 x 3 x 3 72 18 1,152 288 288 72",
        "head the network&#39;s output",
    ],
)
def test_report_states(text: str) -> None:
    assert text in read_text(RESULT)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"passed": False}, "fewer parameters: gate not met"),
        ({"lost": -0.004}, "it gained 0.0040"),
        ({"options": CompressionOptions(weights="int8")}, "weights stored as int8. On a CPU packed weights save bytes"),
        ({"before": dataclasses.replace(RESULT.before, flops=0)}, "FLOPs of a sample 0 10,000 bytes"),
    ],
)
def test_report_follows_the_result(changes: dict[str, Any], text: str) -> None:
    assert text in read_text(dataclasses.replace(RESULT, **changes))
    assert text not in read_text(RESULT)


def test_report_without_layers_that_are_left_has_no_section_for_them() -> None:
    assert "Left as they were" in read_text(RESULT)
    assert "Left as they were" not in read_text(dataclasses.replace(RESULT, left=()))


def test_names_are_escaped() -> None:
    html = render_report(dataclasses.replace(RESULT, left=(Left("<script>", "a & b"),)))

    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_report_refers_to_no_other_file() -> None:
    assert not re.search(r"""(?:src|href)\s*=|@import|url\(""", render_report(RESULT))


def test_result_is_json() -> None:
    described = json.loads(json.dumps(RESULT.to_dict()))

    assert (described["pruned"], described["directory"]) == (0.75, "out/small")
    assert described["after"] == {
        "parameters": 3_000,
        "flops": 10_000,
        "bytes": 12_000,
        "latency": {"1": 0.001, "32": 0.01},
    }
    assert described["left"] == [{"layer": "head", "reason": "the network's output"}]
    assert described["options"] == dataclasses.asdict(RESULT.options)
    assert [entry["passed"] for entry in described["rounds"]] == [False, True]


def test_files_lie_in_the_directory() -> None:
    assert (RESULT.checkpoint, RESULT.report) == (Path("out/small/checkpoint"), Path("out/small/compression.html"))
    assert (RESULT.layers[0].parameters_before, RESULT.layers[0].parameters) == (72, 18)
