"""The notebooks run in a new kernel and are committed without outputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from kfp_mindspore.images import RegistryConfig
from tests.support.remote.base_images import push_base
from tests.support.remote.pipelines_server import make_tasks
from tests.support.remote.registries import BINARY, start_registry

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# On an idle machine a notebook takes less than one minute; a slow one must not fail.
CELL_SECONDS = 600

# Number of plots, and texts in the outputs.
EXPECTED: dict[str, tuple[int, list[str]]] = {
    "01_train_and_serve_digits": (4, ["('Succeeded', 'JobSucceeded')", "# Name: digits-lifecycle"]),
    "02_your_own_model": (3, ["300 predictions, accuracy 0.9"]),
    "03_notebook_to_image_to_msjob": (
        1,
        [
            "digits_network.py\n",
            "'digits-notebook-worker-1'",
            "digits-notebook-worker-0]: epoch 5/5: loss",
            "Succeeded",
        ],
    ),
    "04_compile_upload_watch": (
        0,
        [
            "passed yes",
            "deployed yes",
            "# Name: digits-from-a-notebook",
            "/#/pipelines/details/p0",
            "RUNNING   load-dataset succeeded, train running",
            "SUCCEEDED",
        ],
    ),
    "05_canary_and_rollback": (
        0,
        [
            "version 1 serves first, canary second at 20 %",
            "version 2 serves second\n",
            "version 2 serves second, canary wrong at 20 %",
            "The canary was rolled back; version 2 serves on.",
            "version 3 serves first",
        ],
    ),
    "06_sweep_compress_deploy": (
        1,
        ["trial 5 ", "before: 42,794 parameters", "after: ", "accuracy 0.9", "360 predictions, accuracy 0.9"],
    ),
    "07_ray": (0, ["epoch 4, accuracy 0.9", "accuracy 0.9", "2 trials, the best with learning rate 0.003"]),
    "08_language_models": (0, ["gate passed", "models: ['chat', 'hours']", "hours: '"]),
    "09_image_search": (
        0,
        ["960 captioned pictures", "12 captions that no training picture has", "recall at 5 0."],
    ),
}

MARKS: dict[str, Any] = {"01_train_and_serve_digits": (), "07_ray": pytest.mark.ray}

EXPECTED_WITH_REGISTRY = {"03_notebook_to_image_to_msjob": ["built in", "/team/digits-notebook@sha256:"]}


@pytest.fixture
def servers(isolated_home: Path, pipelines_server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the variables that the notebooks read to a Kubeflow Pipelines server and, where installed, a registry."""
    pipelines_server.states[:] = [None, "RUNNING", "SUCCEEDED"]
    pipelines_server.tasks = make_tasks({"load-dataset": "SUCCEEDED", "train": "RUNNING"})
    monkeypatch.setenv("KFP_ENDPOINT", pipelines_server.url)
    monkeypatch.setenv("KFP_MINDSPORE_IMAGE", "registry.example:5000/team/kfp-mindspore:1")
    monkeypatch.delenv("REGISTRY", raising=False)
    if shutil.which(BINARY) is None:
        yield
        return
    with start_registry(isolated_home / "registry") as registry:
        base = push_base(registry.host, config=RegistryConfig(insecure=(registry.host,)))
        monkeypatch.setenv("KFP_MINDSPORE_IMAGE", base)
        monkeypatch.setenv("REGISTRY", f"{registry.host}/team")
        yield


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    kept = [cell["id"] for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]
    assert not kept, f"{path.name}: outputs in {kept}; clear them before committing"


@pytest.mark.timeout(2 * CELL_SECONDS)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=MARKS.get(path.stem, pytest.mark.slow)) for path in NOTEBOOKS],
)
def test_notebook_runs(path: Path, servers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The kernel `python3` of a virtual environment is its own interpreter.
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    work = tmp_path / "work"
    work.mkdir()
    shutil.copy(path, work)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    plots = [output for output in outputs if "image/png" in output.get("data", {})]
    text = "".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
    count, texts = EXPECTED[path.stem]
    if shutil.which(BINARY) is not None:
        texts = [*texts, *EXPECTED_WITH_REGISTRY.get(path.stem, [])]
    assert len(plots) == count
    assert [expected for expected in texts if expected not in text] == [], text
    services, jobs = tmp_path / "home" / "services", tmp_path / "home" / "jobs"
    left = [entry for root in (services, jobs) for entry in root.glob("*/*") if not entry.name.startswith(".")]
    assert left == [], "the notebook cleans up after itself"
