"""`@msjob_component` by kfp.local, with real MSJobs."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from kfp import dsl, local
from kfp.dsl import Dataset, Input, Metrics, Model, Output

from kfp_mindspore.dsl import add_worker_env, msjob_component


@msjob_component
def double(value: int, text: str = "$$(HOME)") -> str:
    # Dollar signs in the source and in values must not be expanded as container arguments.
    return text + 2 * value * "$(HOME)$$"


def scale(value: float) -> float:
    return value * 100


@msjob_component(workers=2, additional_funcs=[scale], env={"COLOUR": "green"})
def describe(
    data: Input[Dataset],
    note: Output[Model],
    metrics: Output[Metrics],
    settings: dict,
) -> NamedTuple("Outputs", [("rank", int), ("workers", int), ("share", float)]):
    import json
    import os
    import pathlib

    rank = int(os.environ["MS_NODE_ID"])
    directory = pathlib.Path(note.path)
    directory.mkdir(parents=True)
    (directory / "note.json").write_text(
        json.dumps(
            {
                "rank": rank,
                "role": os.environ["MS_ROLE"],
                "colour": os.environ["COLOUR"],
                "settings": settings,
                "data": pathlib.Path(data.path, "data.txt").read_text(),
                "dataset_dir": os.environ["KFP_MINDSPORE_DATASET_DIR"],
                "is_output_dir": os.environ["KFP_MINDSPORE_OUTPUT_DIR"] == note.path,
                "checkpoint_dir": pathlib.Path(os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"]).is_dir(),
            }
        )
    )
    note.metadata["rank"] = rank
    metrics.log_metric("share", scale(0.5))
    print(f"worker {rank} is here")
    return rank, int(os.environ["MS_WORKER_NUM"]), 0.5


@msjob_component
def fail(value: int) -> int:
    if value > 1:
        raise ValueError(f"{value} is too much")
    return value


@msjob_component(backoff_limit=2)
def resume(model: Output[Model]) -> int:
    import os
    import pathlib
    import sys

    attempts = pathlib.Path(os.environ["KFP_MINDSPORE_CHECKPOINT_DIR"], "attempts")
    count = len(attempts.read_text()) if attempts.exists() else 0
    attempts.write_text("x" * (count + 1))
    if count == 0:
        sys.exit(143)
    pathlib.Path(model.path).write_text("done")
    return count + 1


def test_return_value_is_output(run_component) -> None:
    assert run_component(double, value=3).parameters == {"Output": "$$(HOME)" + 6 * "$(HOME)$$"}


def test_outputs_are_those_of_worker_0(run_component, tmp_path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "data.txt").write_text("seven")
    outputs = run_component(describe, {"data": (dsl.Dataset, data)}, settings={"a": 1, "b": ["c"]})
    assert outputs.parameters == {"rank": 0, "workers": 2, "share": 0.5}
    note = outputs.artifacts["note"]
    assert note["metadata"] == {"rank": 0}
    assert json.loads((Path(note["uri"]) / "note.json").read_text()) == {
        "rank": 0,
        "role": "MS_WORKER",
        "colour": "green",
        "settings": {"a": 1, "b": ["c"]},
        "data": "seven",
        "dataset_dir": str(data),
        "is_output_dir": True,
        "checkpoint_dir": True,
    }
    assert outputs.artifacts["metrics"]["metadata"] == {"share": 50.0}
    assert "worker 0 is here" in outputs.log


def test_exception_fails_step_with_its_last_lines(run_component) -> None:
    with pytest.raises(RuntimeError, match="ValueError: 2 is too much"):
        run_component(fail, value=2)


def test_checkpoints_persist_across_restarts(run_component) -> None:
    outputs = run_component(resume)
    assert outputs.parameters == {"Output": 2}
    assert Path(outputs.artifacts["model"]["uri"]).read_text() == "done"


@msjob_component
def read_environment() -> str:
    import os

    return " ".join(os.environ[name] for name in ("COUNT", "WORKERS"))


def test_setters_accept_pipeline_parameters_and_outputs(local_home, tmp_path) -> None:
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "runs"))

    @dsl.pipeline(name="channels")
    def pipeline(count: int) -> str:
        number = fail(value=count)
        task = read_environment()
        add_worker_env(task, "COUNT", count)
        add_worker_env(task, "WORKERS", f"<{number.output}>")
        # Without effect in a local run.
        task.set_cpu_limit("2")
        return task.output

    assert pipeline(count=1).output == "1 <1>"
