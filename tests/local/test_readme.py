"""The Python of README runs as it is printed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_ten_lines_print_class_names(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition("## Python in ten lines")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code is not None
    environment = {**os.environ, "KFP_MINDSPORE_HOME": str(tmp_path / "home"), "KFP_MINDSPORE_BACKEND": "local"}
    command = [sys.executable, "-m", "kfp_mindspore.cli.main", "service", "delete", "wine"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", code[1]],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\['class_\d'( 'class_\d'){4}\]", done.stdout.splitlines()[-1]), done.stdout
