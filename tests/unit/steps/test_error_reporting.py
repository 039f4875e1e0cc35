from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import kfp_mindspore.steps
from kfp_mindspore.errors import UserError
raise {error}
"""


@pytest.mark.parametrize(
    ("error", "variables", "has_trace", "last"),
    [
        ("UserError('no such thing', hint='Do this.')", {"_KFP_RUNTIME": "true"}, False, "Do this."),
        ("UserError('no such thing')", {"_KFP_RUNTIME": "true", "KFP_MINDSPORE_DEBUG": "1"}, True, "no such thing"),
        ("UserError('no such thing')", {}, True, "no such thing"),
        ("ValueError('a bug')", {"_KFP_RUNTIME": "true"}, True, "ValueError: a bug"),
        ("ModuleNotFoundError(name='my_module')", {"_KFP_RUNTIME": "true"}, True, "ModuleNotFoundError"),
    ],
)
def test_step_prints_message_without_stack_trace(
    error: str, variables: dict[str, str], has_trace: bool, last: str
) -> None:
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("_KFP_RUNTIME", "KFP_MINDSPORE_DEBUG")
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(error=error)],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) is has_trace
    assert done.stderr.rstrip().endswith(last)
