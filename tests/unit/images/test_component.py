"""The component build_image with a real registry."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, local

from kfp_mindspore.components import build_image, train_msjob
from kfp_mindspore.images import RegistryConfig
from kfp_mindspore.images.registry.images import inspect_image
from kfp_mindspore.testing import StepOutputs
from tests.support.remote import base_images, registries

TRAIN = """
import json, os, pathlib
folder = pathlib.Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "metrics.jsonl").write_text(json.dumps({"loss": 0.5}) + "\\n")
"""


@pytest.fixture
def settings(registry: registries.Registry) -> dict[str, Any]:
    """Return arguments of the component that name the registry and a base image in it."""
    base = base_images.push_base(registry.host, "step/base", config=RegistryConfig(insecure=(registry.host,)))
    return {"base": base, "destination": f"{registry.host}/step/train", "registry": {"insecure": [registry.host]}}


def test_artifact_is_built_to_image_by_digest(
    run_component: Callable[..., StepOutputs],
    registry: registries.Registry,
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "code" / "notes.txt").write_text("left out")
    (tmp_path / "code" / ".dockerignore").write_text("*.txt\n")
    given = {"sources": (dsl.Artifact, tmp_path / "code")}
    outputs = run_component(build_image, given, files={"extra.py": "A = 1\n"}, **settings)
    image = outputs.parameters["image"]
    assert image.startswith(f"{registry.host}/step/train@sha256:")
    assert registry.list_tags("step/train") == [outputs.parameters["tag"]]
    assert outputs.parameters["built"] is True
    found = inspect_image(image, RegistryConfig(insecure=(registry.host,)))
    assert found.user == "1000:1000"
    again = run_component(build_image, given, files={"extra.py": "A = 1\n"}, **settings)
    assert again.parameters["built"] is False
    assert again.parameters["image"] == image


def test_pipeline_builds_then_trains_with_image(local_home: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"), raise_on_error=True)

    @dsl.pipeline(name="build-and-train")
    def build_and_train() -> str:  # type: ignore[empty-body]
        built = build_image(files={"train.py": TRAIN}, **settings)
        train_msjob(command=["python", str(tmp_path / "train.py")], image=built.outputs["image"])
        return built.outputs["image"]

    assert "@sha256:" in build_and_train().output
    (metrics,) = (tmp_path / "root").glob("**/metrics.jsonl")
    assert "0.5" in metrics.read_text()
