"""The storage of a task's job: setter, decorator, and the check of the compiled pipeline."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl

from kfp_mindspore.cli.main import run
from kfp_mindspore.components import train_msjob
from kfp_mindspore.dsl import msjob_component, set_storage
from kfp_mindspore.errors import KfpMindSporeError, ValidationError
from kfp_mindspore.runs import RemoteClient
from kfp_mindspore.runs.compiled.package import get_workspace_error
from kfp_mindspore.steps.handover.storage_spec import check_pipeline, list_storage_errors

WORKSPACE = dsl.PipelineConfig(
    workspace=dsl.WorkspaceConfig(
        size="1Gi", kubernetes=dsl.KubernetesWorkspaceConfig(pvcSpecPatch={"accessModes": ["ReadWriteMany"]})
    )
)
COMMAND = ["python", "train.py"]


@msjob_component(storage="workspace")
def work() -> int:
    return 1


@msjob_component
def plain() -> int:
    return 1


def compile_tasks(path: Path, build: Callable[[str], Any], config: dsl.PipelineConfig | None = None) -> str:
    @dsl.pipeline(name="storage", pipeline_config=config)
    def pipeline(where: str = "claim:data") -> None:
        build(where)

    compiler.Compiler().compile(pipeline, str(path / "pipeline.yaml"))
    return (path / "pipeline.yaml").read_text()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda _: train_msjob(command=COMMAND), ""),
        (lambda _: plain(), ""),
        (lambda _: train_msjob(command=COMMAND, storage="claim:data/a"), ""),
        (
            lambda _: train_msjob(command=COMMAND, storage="nfs"),
            "train-msjob: storage: must be artifacts, workspace or",
        ),
        (lambda _: train_msjob(command=COMMAND, storage="workspace"), "train-msjob: storage: workspace: needs dsl.Pip"),
        (lambda where: train_msjob(command=COMMAND, storage=where), ""),
        (lambda where: set_storage(plain(), where), ""),
        (lambda _: set_storage(train_msjob(command=COMMAND, storage="nfs"), "artifacts"), ""),
        (lambda _: set_storage(plain(), "workspace/a"), "plain: storage: workspace: needs"),
        (lambda _: work(), "work: storage: workspace: needs"),
        (lambda _: set_storage(work(), "artifacts"), ""),
    ],
)
def test_storage_of_compiled_pipeline(tmp_path: Path, build: Callable[[str], Any], error: str) -> None:
    text = compile_tasks(tmp_path, build)
    errors = list_storage_errors(text)
    assert [found[: len(error)] for found in errors] == ([error] if error else [])
    if error:
        with pytest.raises(ValidationError, match=error):
            check_pipeline(text)
    # With a workspace only the form of the text can be wrong.
    assert bool(list_storage_errors(compile_tasks(tmp_path, build, WORKSPACE))) == ("must be" in error)


@dsl.component(base_image="reg.io/python")
def use(path: str) -> None:
    print(path)


def test_workspace_needs_access_modes(
    tmp_path: Path, pipelines_server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi"))
    text = compile_tasks(tmp_path, lambda _: use(path=dsl.WORKSPACE_PATH_PLACEHOLDER), config)
    assert get_workspace_error(text).startswith("workspace: pvcSpecPatch: accessModes: is missing")
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", "compile", "pipeline.yaml", "-o", "same.yaml"]) == 0
    assert "accessModes: is missing" in capsys.readouterr().err
    client = RemoteClient(pipelines_server.url)
    with pytest.raises(KfpMindSporeError, match="HTTP 500") as caught:
        client.run(text)
    assert "Set dsl.WorkspaceConfig(size=" in caught.value.hint
    text = compile_tasks(tmp_path, lambda _: use(path=dsl.WORKSPACE_PATH_PLACEHOLDER), WORKSPACE)
    assert get_workspace_error(text) == ""
    assert client.run(text).run_id


def test_malformed_storage_is_refused_by_setter_and_decorator() -> None:
    with pytest.raises(ValidationError, match=r"msjob_component is invalid: storage: must be .*, got 'nfs'"):
        msjob_component(storage="nfs")
    with pytest.raises(ValidationError, match=r"set_storage is invalid: storage: must be .*, got 'claim:'"):
        set_storage(None, "claim:")  # type: ignore[arg-type]
