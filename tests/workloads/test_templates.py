"""The project of each template of `init`: its notebook runs, and its service predicts raw samples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from kfp_mindspore.cli.init import TEMPLATES, write_project
from kfp_mindspore.data import read_samples
from kfp_mindspore.data.sources import fashion_mnist
from kfp_mindspore.inference import InferenceClient, LocalServingBackend
from kfp_mindspore.inference.predict import to_json
from kfp_mindspore.runs import run_local

pytestmark = [pytest.mark.workload, pytest.mark.mindspore, pytest.mark.timeout(1200)]

# Arguments of a run where the template's own take minutes.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "detection": {"epochs": 1, "threshold": 0.0},
    "mindcv": {"network": "mobilenet_v1_025", "image_size": 32, "epochs": 1, "threshold": 0.0},
    "vit": {"epochs": 2, "threshold": 0.3},
    "wide-deep": {"epochs": 1, "threshold": 0.5},
}
# Copies of a workload whose own test is not among the long ones.
COPIES = ("classification", "regression", "text-classification", "wide-deep")
PARAMETERS = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(
                name == "vit" and not fashion_mnist.DIRECTORY.is_dir(),
                reason="needs apt-get install dataset-fashion-mnist",
            ),
            *([pytest.mark.long] if name in COPIES else []),
        ],
    )
    for name in TEMPLATES
]


def run_notebook(path: Path, arguments: dict[str, Any]) -> str:
    """Run a notebook in its directory with this Python and return what it prints."""
    notebook = nbformat.read(path, as_version=4)
    (run,) = [cell for cell in notebook.cells if "run_local" in cell.source]
    run.source = re.sub(r"\{\"epochs\": \d+\}", json.dumps(arguments), run.source)
    NotebookClient(
        notebook, timeout=1000, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs)


@pytest.mark.parametrize("template", PARAMETERS)
def test_project_of_template(template: str, local_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    project, name = tmp_path / "my-project", "my-project"
    write_project(project, template)
    if template == "vit":
        # tests/workloads/test_vit.py trains on 20,000 images.
        pipeline = project / "pipeline.py"
        assert "limit=20000" in pipeline.read_text()
        pipeline.write_text(pipeline.read_text().replace("limit=20000", "limit=4000"))
    arguments = ARGUMENTS.get(template, {"epochs": TEMPLATES[template].epochs})
    printed = run_notebook(project / "notebook.ipynb", arguments)
    assert "deployed yes" in printed
    assert printed.count("predicted ") == 10, printed

    # Of the steps only the deployment runs again.
    result = run_local(project / "pipeline.py", arguments, home=local_home, keep=True)
    client = InferenceClient(LocalServingBackend(local_home))
    try:
        assert result.check().gates[0].passed
        assert {step.state for step in result.steps.values() if step.name != "deploy-kserve"} == {"cached"}
        artifacts = {name: artifact["uri"] for _, name, artifact in result.list_artifacts()}
        raw = {name: to_json(array) for name, array in read_samples(artifacts["dataset"], "test", count=3).raw.items()}
        rows = [dict(zip(raw, values, strict=True)) for values in zip(*raw.values(), strict=True)]
        body = json.dumps({"instances": rows}).encode()
        with urllib.request.urlopen(f"{client.get(name).url}/v1/models/{name}:predict", body, timeout=30) as response:
            assert len(json.loads(response.read())["predictions"]) == 3
    finally:
        client.delete(name)


@pytest.mark.parametrize("template", ["regression", "two-inputs"])
def test_training_script_of_template_runs_standalone(template: str, tmp_path: Path) -> None:
    write_project(tmp_path / "project", template)
    readme = (tmp_path / "project" / "README.md").read_text()
    commands = readme.partition("## The training script standalone")[2].partition("```bash\n")[2].partition("```")[0]
    assert "python train.py" in commands
    script = commands.replace("python ", f"{sys.executable} ").replace("--epochs 5", "--epochs 1")
    subprocess.run(["bash", "-ec", script], cwd=tmp_path / "project", env={**os.environ}, check=True, timeout=900)
    assert (tmp_path / "project" / "output" / "checkpoint" / "checkpoint.json").is_file()
