import json
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.podside import functions
from kfp_mindspore.steps.launch.function import copy_outputs, launch_function

SOURCE = """
from typing import NamedTuple
from kfp import dsl
from kfp.dsl import *

def work(value: int, note: Output[Model]) -> NamedTuple("Outputs", [("twice", int), ("text", str)]):
    with open(note.path, "w") as file:
        file.write("written")
    note.metadata["kind"] = "note"
    return 2 * value, "done"

from kfp_mindspore.steps.launch.function import launch_function

work = launch_function(work, '{"workers": 2}')
"""


def _make_input(root: Path) -> dict[str, Any]:
    note = {
        "name": "note",
        "type": {"schemaTitle": "system.Model", "schemaVersion": "0.0.1"},
        "uri": str(root / "note"),
        "metadata": {},
    }
    return {
        "inputs": {"parameterValues": {"value": 21}},
        "outputs": {
            "parameters": {name: {"outputFile": str(root / name)} for name in ("twice", "text")},
            "artifacts": {"note": {"artifacts": [note]}},
            "outputFile": str(root / "executor_output.json"),
        },
    }


def _run(executor_input: dict[str, Any]) -> None:
    functions.main(["--source", SOURCE, "--function", "work", "--executor-input", json.dumps(executor_input)])


def test_worker_0_writes_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MS_ROLE", raising=False)
    monkeypatch.delenv("MS_NODE_ID", raising=False)
    _run(_make_input(tmp_path))
    output = json.loads((tmp_path / "executor_output.json").read_text())
    assert output["parameterValues"] == {"twice": 42, "text": "done"}
    assert output["artifacts"]["note"]["artifacts"][0]["metadata"] == {"kind": "note"}
    assert (tmp_path / "note").read_text() == "written"


def test_other_workers_write_to_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    monkeypatch.setenv("MS_NODE_ID", "1")
    _run(_make_input(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_launcher_returns_outputs_of_worker_0(tmp_path: Path) -> None:
    from kfp import dsl

    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    function = namespace["work"].__wrapped__
    note = dsl.Model(name="note", uri=str(tmp_path / "note"), metadata={})
    output = {
        "parameterValues": {"twice": 42, "text": "done"},
        "artifacts": {"note": {"artifacts": [{"name": "n", "uri": "/elsewhere", "metadata": {"kind": "note"}}]}},
    }
    assert copy_outputs(function, output, {"value": 21, "note": note}) == (42, "done")
    assert (note.name, note.uri, note.metadata) == ("n", "/elsewhere", {"kind": "note"})


def test_returned_artifact_is_recreated() -> None:
    from kfp import dsl

    def work() -> dsl.Model:
        return dsl.Model(uri="/model")

    output = {"artifacts": {"Output": {"artifacts": [{"name": "m", "uri": "/model", "metadata": {"a": "b"}}]}}}
    model = copy_outputs(work, output, {})
    assert isinstance(model, dsl.Model)
    assert (model.name, model.uri, model.metadata) == ("m", "/model", {"a": "b"})


def test_launcher_keeps_signature_of_function() -> None:
    import inspect

    def work(value: int, name: str = "x") -> int:
        return value

    launched = launch_function(work, "{}")
    assert inspect.getfullargspec(launched).annotations == {"value": int, "name": str, "return": int}
    assert inspect.signature(launched) == inspect.signature(work)
