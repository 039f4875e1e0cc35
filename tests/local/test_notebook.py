"""The notebooks run in a new kernel and are committed without outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_SECONDS = 180


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Install a kernel of this interpreter for one test."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    install = ["-m", "ipykernel", "install", "--prefix", str(tmp_path), "--name", "here"]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    return "here"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    kept = [cell["id"] for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    assert not kept, f"{path.name}: outputs in {kept}; clear them before committing"


@pytest.mark.lifecycle
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, kernel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KFP_MINDSPORE_HOME", str(tmp_path / "home"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name=kernel,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    plots = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(plots) >= 4, "the digits, the curves, the confusion matrix and the prediction are drawn"
    services, jobs = tmp_path / "home" / "services", tmp_path / "home" / "jobs"
    left = [entry for root in (services, jobs) for entry in root.glob("*/*") if not entry.name.startswith(".")]
    assert left == [], "the notebook cleans up after itself"
