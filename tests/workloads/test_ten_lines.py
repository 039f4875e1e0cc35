"""The Python of the README under "Python in ten lines" runs as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.formats.dataset import Dataset

ROOT = Path(__file__).parents[2]
HEADING = "## Python in ten lines"

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(900)]


def test_ten_lines_of_python(local_home: Path, tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition(HEADING)[2]
    (code,) = re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    predicted = re.findall(r"class_\d", done.stdout.splitlines()[-1])
    wine = Dataset.open(tmp_path / "wine")
    true = [wine.labels[index] for index in wine.read_columns("test")["label"][: len(predicted)]]
    assert len(predicted) == 5
    assert sum(one == other for one, other in zip(predicted, true, strict=True)) >= 4
