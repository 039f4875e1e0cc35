"""The networks of the templates for tables beside linear models, on five tables of different size for each template.

A network is as good as its baseline when the test split cannot show that it is worse: the mean of its loss minus the
baseline's over the samples is at most one standard error of this mean. Both predict the same samples, so the noise that
they share cancels out: the limit is far closer than a metric's standard error. For classes, it allows one more error.

The options in train.py were chosen on other tables of the same generators, and on random splits of the other rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kfp_mindspore.cli.init import TEMPLATES, write_project
from tests.support.models import table_training

pytestmark = [pytest.mark.workload, pytest.mark.long, pytest.mark.mindspore, pytest.mark.timeout(1200)]

# Float rounding: one more wrong sample is exactly one standard error.
ROUNDING = 1e-9


@pytest.fixture(scope="module", params=table_training.TABLES)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the script has measured, by table."""
    directory = tmp_path_factory.mktemp(request.param)
    write_project(directory / "project", request.param)
    done = subprocess.run(
        [sys.executable, table_training.__file__, request.param, str(directory)],
        cwd=directory / "project",
        env={**os.environ, "KFP_MINDSPORE_HOME": str(directory / "home")},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"table"')]
    return {line["table"]: line for line in lines}


def test_network_is_at_least_as_good_as_baseline(results: dict[str, Any]) -> None:
    assert len(results) == 5
    worse = {}
    for table, found in results.items():
        # The metric of the template's gate: accuracy of classes, RMSE of numbers.
        kind = "errors" if "errors" in found["network"] else "losses"
        network, baseline = (np.array(found[model][kind]) for model in ("network", "baseline"))
        difference = network - baseline
        limit = difference.std(ddof=1) / np.sqrt(len(difference))
        if difference.mean() > limit + ROUNDING:
            worse[table] = f"{network.mean():.4g} for {baseline.mean():.4g}, standard error {limit:.2g}"
    assert not worse


def test_baseline_is_cheap(results: dict[str, Any]) -> None:
    slow = {
        table: (found["baseline_seconds"], found["training_seconds"])
        for table, found in results.items()
        if found["baseline_seconds"] > max(2, 0.05 * found["training_seconds"])
    }
    assert not slow


@pytest.mark.parametrize("template", table_training.TABLES)
def test_script_and_pipeline_have_same_defaults(tmp_path: Path, template: str) -> None:
    write_project(tmp_path / template, template)
    script = (tmp_path / template / "train.py").read_text()
    for name in ("epochs", "learning_rate"):
        (line,) = (line for line in script.splitlines() if f'"--{name.replace("_", "-")}"' in line)
        assert float(line.partition("default=")[2].rstrip(")")) == getattr(TEMPLATES[template], name)
