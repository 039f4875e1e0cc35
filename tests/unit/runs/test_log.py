from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.runs.log import read_last_step_lines

INPUT = """\
05:00:00.000 - INFO - Executing task 'x'
    [KFP Executor 2026-01-01 00:00:00,000 INFO]: Got executor_input:
    {
        "inputs": {
            "a": 1
        }
    }
"""
FAILED = "    \n\n05:00:01.000 - ERROR - Task 'x' finished with status FAILURE\n" + "-" * 80 + "\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INPUT + "    one\n    two\n" + FAILED, ["one", "two"]),
        (INPUT + "      | indented\n" + FAILED, ["  | indented"]),
        (
            INPUT + "    Traceback (most recent call last):\n      File x\n"
            "    kfp_mindspore.errors.UserError: data: no such file: x\n    Look there.\n" + FAILED,
            ["data: no such file: x", "Look there."],
        ),
        ("Traceback (most recent call last):\nRuntimeError: no runner\n", None),
        ("", []),
    ],
)
def test_lines_of_kfp_are_dropped(tmp_path: Path, text: str, expected: list[str] | None) -> None:
    path = tmp_path / "step.log"
    path.write_text(text)
    assert read_last_step_lines(path) == (text.splitlines() if expected is None else expected)


def test_number_of_lines_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "step.log"
    path.write_text("".join(f"    line {i}\n" for i in range(1000)))
    assert read_last_step_lines(path, 3) == ["line 997", "line 998", "line 999"]
    assert read_last_step_lines(tmp_path / "missing", 3) == []
