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


def test_local_run_without_destination_builds_nothing(run_component) -> None:
    """Local run without a destination builds nothing."""
    outputs = run_component(build_image, files={"train.py": TRAIN})
    assert outputs.parameters == {"image": "", "tag": "", "built": False}
    assert "nothing to build" in outputs.log


def test_unreachable_registry_fails_step(run_component) -> None:
    """Unreachable registry fails the step."""
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9"):
        run_component(
            build_image,
            files={"train.py": TRAIN},
            base="127.0.0.1:9/team/base:1",
            destination="127.0.0.1:9/team/train",
            registry={"insecure": ["127.0.0.1:9"]},
        )


def test_pipeline_without_registry_trains_without_image(local_home, tmp_path) -> None:
    """Pipeline without a registry trains without an image."""
    from kfp_mindspore.components.training.train_msjob import train_msjob

    (tmp_path / "train.py").write_text(TRAIN)
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"), raise_on_error=True)

    @dsl.pipeline(name="build-and-train")
    def build_and_train() -> str:  # type: ignore[empty-body]
        built = build_image(files={"train.py": TRAIN})
        train_msjob(command=["python", str(tmp_path / "train.py")], image=built.outputs["image"])
        return built.outputs["image"]

    assert build_and_train().output == ""
    (metrics,) = (tmp_path / "root").glob("**/metrics.jsonl")
    assert "0.5" in metrics.read_text()
