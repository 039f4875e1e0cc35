from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kfp_mindspore.errors import GateNotMetError, NotFoundError, ProcessFailedError, UserError, ValidationError
from kfp_mindspore.local.process import ProcessIdentity
from kfp_mindspore.runs import run_local
from kfp_mindspore.runs.compiled.sources import compile_pipeline, compile_text, get_name, load_spec
from kfp_mindspore.runs.compiled.spec import convert_arguments
from kfp_mindspore.runs.report.result import RunResult

pytestmark = pytest.mark.timeout(60)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def states(result: RunResult) -> dict[str, str]:
    return {step.name: step.state for step in result.steps.values()}


def test_run_reports_outputs_and_progress_and_rerun_is_cached(project: Path, home: Path) -> None:
    source = f"{project}/steps.py:toy_lifecycle"
    seen: list[dict[str, object]] = []
    lines: list[str] = []
    result = run_local(source, {"count": "3"}, on_progress=lambda _, events: seen.extend(events), on_log=lines.append)
    assert result.state == "succeeded"
    assert states(result) == dict.fromkeys(["load", "train", "evaluate", "serve", "smoke"], "succeeded")
    assert result.pipeline == "toy-lifecycle"
    assert result.arguments == {"count": 3, "accuracy": 0.97, "threshold": 0.95}
    assert [event["step"] for event in seen if event["kind"] == "progress"] == [10, 20, 30, 40, 50]
    assert any("wrote 3 values" in line for line in lines)
    train = result.steps["train"]
    assert 0.1 <= train.body_seconds < train.seconds < result.seconds
    assert train.outputs["model"]["metadata"] == {"helper": "1"}
    assert len(train.outputs["digest"]) == 64
    assert 0 < result.overhead_seconds < result.seconds
    value = result.to_dict()
    assert (value["metric"], value["value"], value["samples"]) == ("accuracy", 0.97, 90)
    assert (value["prediction"], value["label"]) == ("1", "1")
    assert value["url"] == "http://127.0.0.1:8080"
    assert result.gates[0].describe() == "accuracy 0.970 is 0.020 above the threshold of 0.950"
    assert json.loads((result.directory / "result.json").read_text()) == value
    assert "wrote 3 values" in (result.directory / "logs" / "load.log").read_text()
    assert not (result.directory / "tmp").exists()
    assert not (result.directory / "workspace").exists()

    again = run_local(source, {"count": 3})
    assert states(again) == {
        "load": "cached", "train": "cached", "evaluate": "cached", "serve": "succeeded", "smoke": "succeeded"
    }  # fmt: skip
    assert again.steps["train"].outputs == train.outputs
    assert again.gates == result.gates
    assert sum(step.seconds for step in again.steps.values() if step.state == "cached") < 1.0
    assert again.steps["serve"].outputs["pid"] != result.steps["serve"].outputs["pid"]

    (project / "helper.py").write_text('VERSION = "2"\n')
    changed = run_local(source, {"count": 3})
    assert states(changed)["train"] == "succeeded"
    assert changed.steps["train"].outputs["model"]["metadata"] == {"helper": "2"}
    uncached = run_local(source, {"count": 3}, cache=False)
    assert "cached" not in states(uncached).values()


def test_rerun_with_kept_services_is_cached_and_leaves_no_temporary_folder(
    project: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    source = f"{project}/steps.py:toy_lifecycle"
    first = run_local(source, {"count": 4}, keep=True)
    assert first.notes == []
    again = run_local(source, {"count": 4}, keep=True)
    assert states(again) == {
        "load": "cached", "train": "cached", "evaluate": "cached", "serve": "succeeded", "smoke": "succeeded"
    }  # fmt: skip
    assert not list(temporary.glob("*/ephemeral_component.py"))
    assert not (again.directory / "tmp").exists()


def test_unmet_gate_skips_its_branch_and_keeps_artifacts(project: Path, home: Path) -> None:
    with pytest.raises(GateNotMetError, match=r"accuracy 0\.931 is 0\.019 below the threshold of 0\.950") as caught:
        run_local(f"{project}/steps.py:toy_lifecycle", {"accuracy": 0.931})
    assert caught.value.exit_code == 3
    assert "Skipped: serve, smoke" in str(caught.value)
    directory = next((home / "runs").iterdir())
    assert json.loads((directory / "result.json").read_text())["states"]["serve"] == "skipped"
    assert "below the threshold" in (directory / "report.html").read_text()
    assert list(directory.glob("artifacts/*/train/model/metrics.jsonl"))


def test_failed_step_is_named_with_its_last_lines(project: Path, home: Path) -> None:
    result = run_local(f"{project}/steps.py:failing", raise_on_error=False)
    assert states(result) == {"load": "succeeded", "fail": "failed", "load-2": "skipped"}
    assert isinstance(result.error, ProcessFailedError)
    assert result.error.message.startswith("step fail failed after")
    assert result.error.log == ("about to fail", "no more paper")
    with pytest.raises(ProcessFailedError):
        result.check()


def test_pipeline_function_with_loop_and_output(home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    import steps

    result = run_local(steps.looping, project=project)
    assert result.outputs == {"Output": 3}
    assert states(result) == {"add": "succeeded", "add-2": "succeeded"}


def test_invalid_argument_leaves_no_run_directory(project: Path, home: Path) -> None:
    with pytest.raises(UserError, match="mesage: no such parameter; did you mean 'message'"):
        run_local(f"{project}/steps.py:failing", {"mesage": "x"})
    with pytest.raises(NotFoundError, match="no_such: no such pipeline"):
        run_local("no_such")
    assert not list(home.glob("runs/*"))


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("no_such", NotFoundError, "no_such: no such pipeline"),
        ("project", NotFoundError, "did you mean 'project/pipeline.py'"),
        ("table.csv", NotFoundError, "table.csv: is no .py, .yaml or .json file"),
        ("no/such/file.py", NotFoundError, "no such file"),
        ("steps.py", UserError, "contains several pipelines: toy_lifecycle, failing, hanging, looping"),
        ("steps.py:absent", NotFoundError, "no pipeline named absent"),
        ("helper.py", UserError, "contains no pipeline"),
        ("raising.py", UserError, "raising.py:1: ImportError: no such friend"),
        ("broken.yaml", UserError, "broken.yaml: not valid YAML"),
        ("other.yaml", UserError, "other.yaml: not a compiled pipeline"),
        ("list.yaml", UserError, "list.yaml: expected a compiled pipeline"),
    ],
)
def test_invalid_source_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: type[UserError], message: str
) -> None:
    monkeypatch.chdir(project)
    Path("raising.py").write_text("raise ImportError('no such friend')")
    Path("broken.yaml").write_text("a: [1,\nb")
    Path("other.yaml").write_text("a: 1")
    Path("list.yaml").write_text("- 1")
    Path("table.csv").write_text("a,b\n1,2\n")
    Path("project").mkdir()
    Path("project/pipeline.py").write_text("")
    with pytest.raises(kind, match=message):
        load_spec(source)


def test_missing_argument_is_refused(project: Path, home: Path) -> None:
    with pytest.raises(UserError, match="print: expected a function with"):
        compile_pipeline(print)
    with pytest.raises(UserError, match="source: must be a function with @dsl"):
        compile_text(print)
    with pytest.raises(ValidationError, match="marker: is required"):
        convert_arguments(load_spec(f"{project}/steps.py:hanging"), {})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_terminated_run_leaves_no_process(project: Path, home: Path, tmp_path: Path, number: int) -> None:
    marker = tmp_path / "marker"
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kfp_mindspore.cli.main",
            "run",
            f"{project}/steps.py:hanging",
            "-p",
            f"marker={marker}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert wait_for(marker.exists, 30)
    processes = [ProcessIdentity.of(int(pid)) for pid in marker.read_text().split()]
    os.kill(run.pid, number)
    _, errors = run.communicate(timeout=30)
    assert wait_for(lambda: not any(process and process.is_alive() for process in processes), 15)
    assert Path(f"{marker}.terminated").exists()
    if number == signal.SIGINT:
        assert run.returncode == 130
        assert "Traceback" not in errors
        directory = next(home.glob("runs/*"))
        stored = json.loads((directory / "result.json").read_text())
        assert (stored["state"], stored["states"]["hang"]) == ("interrupted", "failed")
        assert stored["wall_seconds"] > 0
        assert errors.splitlines()[-4:] == [
            "Interrupted.",
            f"Log: {directory / 'run.log'}",
            f"Report: {directory / 'report.html'}",
            f"Continue it: kfp-mindspore runs resume {directory.name}",
        ]
        assert "interrupted" in (directory / "report.html").read_text()
    events = next((home / "runs").iterdir()) / "events.jsonl"
    assert '"load"' not in [line for line in events.read_text().splitlines() if '"task"' in line][-1]


def test_argument_equal_to_its_default_hits_cache(tmp_path: Path, home: Path) -> None:
    source = tmp_path / "nested.py"
    source.write_text(
        """
from kfp import dsl

@dsl.component(base_image="python:3.11", install_kfp_package=False)
def show(values: dict) -> str:
    return str(values["count"])

@dsl.pipeline(name="nested")
def nested(count: int = 3):
    show(values={"count": count})
"""
    )
    assert states(run_local(str(source), report=False)) == {"show": "succeeded"}
    assert states(run_local(str(source), {"count": 3}, report=False)) == {"show": "cached"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("train.py", '@dsl.pipeline(name="My model")\ndef one(): ...', "My model"),
        ("train.py", "@pipeline\ndef my_model(): ...", "my_model"),
        ("train.py", "@dsl.pipeline(name=NAME)\ndef my_model(): ...", "my_model"),
        ("train.py", "@dsl.pipeline()\ndef a(): ...\n@dsl.pipeline()\ndef b(): ...", "train"),
        ("train.py:b", "@dsl.pipeline()\ndef a(): ...\n@dsl.pipeline(name='c')\ndef b(): ...", "c"),
        ("train.py", "def broken(", "train"),
        ("any.yaml", "components: {}\npipelineInfo:\n  name: compiled\n", "compiled"),
        ("digits_lifecycle", "", "digits_lifecycle"),
    ],
)
def test_run_is_named_after_its_pipeline(tmp_path: Path, name: str, text: str, expected: str) -> None:
    source = tmp_path / name if "." in name else Path(name)
    Path(str(tmp_path / name).removesuffix(":b")).write_text(text)
    assert get_name(str(source)) == expected


def test_project_with_too_many_files_is_reported(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kfp_mindspore.runs.local.code_digest.MAXIMUM_FILES", 1)
    monkeypatch.setattr("kfp_mindspore.runs.local.run.MAXIMUM_FILES", 1)
    result = run_local(f"{project}/steps.py:looping", report=False)
    assert result.notes == [f"nothing is cached: {project} has more than 1 Python files"]


PRINTING = """
from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def show():
    import subprocess
    import sys

    print("a… → b", flush=True)
    subprocess.run([sys.executable, "-c", "print('c… → d')"], check=True)


@dsl.pipeline(name="two-prints")
def pipeline():
    show()
    show()
"""


def test_step_prints_any_text_under_ascii_locale(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "LANG": "C"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    source = tmp_path / "project" / "pipeline.py"
    source.parent.mkdir()
    source.write_text(PRINTING)
    result = run_local(str(source), report=False)
    log = (result.directory / "logs" / "show.log").read_text(encoding="utf-8")
    assert "a… → b" in log
    assert "c… → d" in log


@pytest.mark.parametrize("name", ["types.py", "random.py", "json/__init__.py"])
def test_module_named_as_one_of_the_standard_library_is_refused_before_the_run(
    project: Path, home: Path, name: str
) -> None:
    file = project / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    shadowing = file.parent if file.name == "__init__.py" else file
    with pytest.raises(UserError, match=f"^{shadowing}: named as a module of Python's standard library") as caught:
        run_local(f"{project}/steps.py:toy_lifecycle")
    assert caught.value.hint == f"Rename it, such as my_{shadowing.name}."
    assert not home.exists()
