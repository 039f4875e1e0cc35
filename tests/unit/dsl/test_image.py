"""The image of a task, of a pipeline and of a compiled one."""

from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, components, dsl

from kfp_mindspore.components import train_msjob
from kfp_mindspore.dsl import set_image
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.runs.compiled.image import list_placeholders
from kfp_mindspore.runs.compiled.spec import read_spec
from kfp_mindspore.settings import IMAGE_VARIABLE

IMAGE = "registry.example.com/steps@sha256:" + "0" * 64
COMPONENT = Path(__file__).parents[3] / "components/data_processing/load_dataset/component.yaml"


@dsl.component(base_image="registry.example.com/own:1")
def own() -> int:
    return 1


def _compile(pipeline: Any, tmp_path: Path) -> dict[str, Any]:
    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    spec: dict[str, Any] = read_spec(tmp_path / "pipeline.yaml")
    return spec


def _list_images(spec: dict[str, Any]) -> dict[str, tuple[str, str]]:
    containers = {name: item["container"] for name, item in spec["deploymentSpec"]["executors"].items()}
    env = {name: {e["name"]: e["value"] for e in item.get("env", [])} for name, item in containers.items()}
    return {name: (item["image"], env[name].get(IMAGE_VARIABLE, "")) for name, item in containers.items()}


def test_task_has_image(tmp_path: Path) -> None:
    loaded = components.load_component_from_file(str(COMPONENT))

    @dsl.pipeline(name="tasks")
    def pipeline(image: str) -> None:
        task = train_msjob(command=["true"])
        assert set_image(task, IMAGE) is task
        set_image(loaded(name="wine"), IMAGE)
        set_image(own(), image)

    images = _list_images(_compile(pipeline, tmp_path))
    assert images["exec-train-msjob"] == images["exec-load-dataset"] == (IMAGE, IMAGE)
    assert images["exec-own"] == ("{{$.inputs.parameters['pipelinechannel--image']}}", "")


def test_pipeline_has_image_where_it_had_none(tmp_path: Path) -> None:
    @dsl.pipeline(name="inner")
    def inner() -> None:
        train_msjob(command=["true"])

    @dsl.pipeline(name="outer")
    def outer() -> None:
        inner()
        own()

    plain = _compile(outer, tmp_path)
    assert list_placeholders(plain)
    assert set_image(outer, IMAGE) is outer
    changed = _compile(outer, tmp_path)
    assert _list_images(changed) == {
        "exec-train-msjob": (IMAGE, IMAGE),
        "exec-own": ("registry.example.com/own:1", ""),
    }
    assert _list_images(set_image(plain, IMAGE)) == _list_images(changed)


def test_other_targets_are_refused() -> None:
    with pytest.raises(ValidationError, match="set_image is invalid: image: must be a string, got ''"):
        set_image({}, "")
    with pytest.raises(UserError, match="target: got PythonComponent"):
        set_image(own, IMAGE)

    @dsl.pipeline(name="inner")
    def inner() -> None:
        own()

    with pytest.raises(UserError, match="set_image: inner: is a pipeline"):

        @dsl.pipeline(name="outer")
        def outer() -> None:
            set_image(inner(), IMAGE)
