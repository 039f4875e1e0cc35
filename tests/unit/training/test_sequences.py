"""Layers for padded sequences: results of sequence_scenarios.py, in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.mindspore_processes import MindSporeProcesses

pytestmark = [pytest.mark.mindspore, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def results(mindspore_processes: MindSporeProcesses, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("sequences")
    script = Path(__file__).with_name("sequence_scenarios.py")
    process = mindspore_processes.start([script, root], root, environment={"KFP_MINDSPORE_HOME": str(root)})
    code, output = process.finish(850)
    assert code == 0, output[-5000:]
    found: dict[str, Any] = json.loads((root / "results.json").read_text())
    return found


@pytest.mark.parametrize("name", ["gru", "lstm", "transformer"])
def test_layer_computes_what_masked_layer_of_mindspore_does(results: dict[str, Any], name: str) -> None:
    found = results[name]
    assert found["size"] > 0.05
    assert max(found["outputs"], found["final"]) < 1e-5 * max(found["size"], 1)
    assert found["empty"] == 0
    assert found["padding"] < 1e-5


@pytest.mark.parametrize("name", ["gru", "lstm", "transformer"])
def test_layer_learns_and_is_exported_with_free_batch(results: dict[str, Any], name: str) -> None:
    found = results["trained"][name]
    assert found["losses"][-1] < 0.7 * found["losses"][0]
    assert found["difference"] < 1e-5
    assert found["shape"] == [-1, 4, 4]
