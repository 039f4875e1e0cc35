"""A compression's report: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from kfp_mindspore.compression.result import CompressionResult
from kfp_mindspore.evaluation.curves import build_environment


def render_report(result: CompressionResult) -> str:
    """Return the report as HTML: sizes, metric, rounds, parameters, and what was left.

    Args:
        result: The result.
    """
    environment = build_environment(Path(__file__).with_name("templates"))
    return environment.get_template("compression.html.j2").render(result=result)
