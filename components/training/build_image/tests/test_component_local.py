import pytest
from kfp import dsl, local

from ..component import build_image

pytest_plugins = ["kfp_mindspore.testing"]

TRAIN = """
import json, os, pathlib
folder = pathlib.Path(os.environ["KFP_MINDSPORE_OUTPUT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "metrics.jsonl").write_text(json.dumps({"loss": 0.5}) + "\\n")
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    from tests.support import registries

    registries.require_binary()
    with registries.start_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture
def settings(registry):
    from kfp_mindspore.images import RegistryConfig
    from tests.support import base_images

    base = base_images.push_base(registry.host, config=RegistryConfig(insecure=(registry.host,)))
    return {"base": base, "destination": f"{registry.host}/team/train", "registry": {"insecure": [registry.host]}}


def test_artifact_is_built_to_an_image_by_digest(run_component, registry, settings, tmp_path) -> None:
    from kfp_mindspore.images import RegistryConfig, inspect_image

    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    (tmp_path / "code" / "notes.txt").write_text("left out")
    (tmp_path / "code" / ".dockerignore").write_text("*.txt\n")
    given = {"sources": (dsl.Artifact, tmp_path / "code")}
    outputs = run_component(build_image, given, files={"extra.py": "A = 1\n"}, **settings)
    image = outputs.parameters["image"]
    assert image.startswith(f"{registry.host}/team/train@sha256:")
    assert registry.list_tags("team/train") == [outputs.parameters["tag"]]
    assert outputs.parameters["built"] is True
    found = inspect_image(image, RegistryConfig(insecure=(registry.host,)))
    assert found.user == "1000:1000"
    again = run_component(build_image, given, files={"extra.py": "A = 1\n"}, **settings)
    assert again.parameters["built"] is False
    assert again.parameters["image"] == image


def test_local_run_without_a_destination_builds_nothing(run_component) -> None:
    outputs = run_component(build_image, files={"train.py": TRAIN})
    assert outputs.parameters == {"image": "", "tag": "", "built": False}
    assert "nothing to build" in outputs.log


@pytest.mark.parametrize("has_registry", [True, False])
def test_pipeline_builds_then_trains_with_the_image(local_home, settings, tmp_path, has_registry) -> None:
    from kfp_mindspore.components.training.train_msjob import train_msjob

    (tmp_path / "train.py").write_text(TRAIN)
    given = settings if has_registry else {}
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"), raise_on_error=True)

    @dsl.pipeline(name="build-and-train")
    def build_and_train() -> str:  # type: ignore[empty-body]
        built = build_image(files={"train.py": TRAIN}, **given)
        train_msjob(command=["python", str(tmp_path / "train.py")], image=built.outputs["image"])
        return built.outputs["image"]

    task = build_and_train()
    assert ("@sha256:" in task.output) is has_registry
    (metrics,) = (tmp_path / "root").glob("**/metrics.jsonl")
    assert "0.5" in metrics.read_text()
