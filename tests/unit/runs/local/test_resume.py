"""Resumed runs without MindSpore; `tests/local/test_resume.py` kills a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.runs import resume_local, run_local
from kfp_mindspore.runs.local.resume import get_last_run

pytestmark = pytest.mark.timeout(180)

PIPELINE = """
from kfp import dsl

import helper

lightweight = dsl.component(base_image="python:3.11", install_kfp_package=False)


@lightweight
def first(count: int) -> str:
    return str(count)


@lightweight
def second(text: str, gate: str, options: dict) -> str:
    import os
    from pathlib import Path

    import helper
    from kfp_mindspore.steps.handover.checkpoints import StepCheckpoints
    from kfp_mindspore.steps.launch.train import to_arguments

    # As train_msjob does.
    checkpoints = StepCheckpoints(Path("unused"), to_arguments(options)).path
    print("checkpoints:", sorted(file.name for file in checkpoints.iterdir()), flush=True)
    if helper.SAVES:
        (checkpoints / "0001-00000004").mkdir(exist_ok=True)
    if not os.path.exists(gate):
        raise SystemExit("no gate")
    return text + helper.VERSION


@dsl.pipeline(name="two-steps")
def two_steps(gate: str, count: int = 3):
    options = {name: count for name in ("seed", "epochs", "learning_rate", "width", "depth", "batch_size")}
    second(text=first(count=count).output, gate=gate, options=options)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "project" / "pipeline.py"
    file.parent.mkdir()
    file.write_text(PIPELINE)
    file.with_name("helper.py").write_text('VERSION, SAVES = "1", True\n')
    return file


def test_failed_run_resumes_with_its_parameters(source: Path, home: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    failed = run_local(str(source), {"gate": str(gate), "count": "5"}, cache=False, raise_on_error=False, report=False)
    assert failed.state == "failed"
    gate.touch()
    resumed = resume_local(failed.id, report=False)
    assert (resumed.id, resumed.state) == (failed.id, "succeeded")
    assert {step.name: step.state for step in resumed.steps.values()} == {"first": "cached", "second": "succeeded"}
    assert resumed.steps["second"].outputs == {"Output": "51"}
    assert resumed.arguments == {"gate": str(gate), "count": 5}
    assert resumed.notes == []
    assert "no gate" in (failed.directory / "attempts" / "1" / "logs" / "second.log").read_text()
    log = (failed.directory / "logs" / "second.log").read_text()
    assert "no gate" not in log
    # KFP's struct has another order in each process.
    assert "checkpoints: ['0001-00000004']" in log
    with pytest.raises(UserError, match=rf"^run {failed.id}: nothing to resume, it has succeeded"):
        resume_local(failed.id)


def test_changed_code_is_refused_until_accepted(source: Path, home: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    source.with_name("helper.py").write_text('VERSION, SAVES = "1", False\n')
    failed = run_local(str(source), {"gate": str(gate)}, raise_on_error=False, report=False)
    gate.touch()
    source.with_name("helper.py").write_text('VERSION, SAVES = "2", False\n')
    with pytest.raises(UserError, match=rf"since its start Python code in {source.parent} or of kfp-mindspore changed"):
        resume_local()
    source.write_text(PIPELINE.replace("no gate", "closed"))
    with pytest.raises(UserError, match=rf"since its start {source} changed\nContinue it .*--accept-changes"):
        resume_local()
    assert not (failed.directory / "attempts").exists()
    resumed = resume_local(accept_changes=True, report=False)
    assert {step.name: step.state for step in resumed.steps.values()} == {"first": "cached", "second": "succeeded"}
    assert resumed.steps["second"].outputs == {"Output": "32"}
    assert resumed.notes[0] == f"resumed, although {source} changed since its start"
    assert resumed.notes[1].startswith(f"second: no checkpoint of an earlier attempt in {failed.directory}")


def test_last_run_is_found_by_pipeline(source: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stored in (("a", str(source)), ("b", f"{source}:two_steps"), ("c", "digits_lifecycle")):
        (home / "runs" / name).mkdir(parents=True)
        (home / "runs" / name / "request.json").write_text(json.dumps({"source": stored}))
    monkeypatch.chdir(source.parent)
    for given, name in (("pipeline.py", "a"), ("pipeline.py:two_steps", "b"), ("digits_lifecycle", "c")):
        assert get_last_run(given).id == name
    with pytest.raises(NotFoundError, match="tabular: has no run to resume\nStart one: kfp-mindspore run tabular"):
        get_last_run("tabular")
    with pytest.raises(NotFoundError, match="absent: no such pipeline"):
        get_last_run("absent")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "absent: no such run"),
        ("live", "run live: is running\nWait for its end"),
        ("done", "run done: nothing to resume, it has succeeded"),
        ("gate", "run gate: nothing to resume, it was refused by its gate"),
        ("old", "run old: was started by a version of kfp-mindspore that cannot resume runs"),
        ("moved", "pipeline.py: no such file"),
    ],
)
def test_run_that_cannot_be_resumed_is_refused(home: Path, tmp_path: Path, name: str, message: str) -> None:
    states = {"done": "succeeded", "gate": "refused", "old": "failed", "moved": "interrupted", "live": ""}
    for stored, state in states.items():
        directory = home / "runs" / stored
        directory.mkdir(parents=True)
        request = {} if stored == "old" else {"source": f"{tmp_path}/pipeline.py", "reads_cache": True}
        (directory / "request.json").write_text(json.dumps(request))
        if state:
            result = {"pipeline": "p", "state": state, "wall_seconds": 1.0}
            (directory / "result.json").write_text(json.dumps(result))
    with Lease.hold(home / "runs" / "live" / "active"), pytest.raises(UserError, match=message):
        resume_local(name)
