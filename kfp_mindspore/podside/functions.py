"""Worker entrypoint for an `@msjob_component`: `python -m kfp_mindspore.podside.functions`.

It imports the step's source and runs the function by kfp's executor, with the step's inputs and outputs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.settings import NODE_ID_VARIABLE, ROLE_VARIABLE, SCHEDULER_ROLE

if TYPE_CHECKING:
    from kfp.dsl.executor import Executor


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the function in a worker; run MindSpore's scheduler in a distributed job's scheduler."""
    parser = argparse.ArgumentParser(prog="python -m kfp_mindspore.podside.functions", description=__doc__)
    parser.add_argument("--source", required=True, help="source of the step's module")
    parser.add_argument("--function", required=True, help="name of the function in it")
    parser.add_argument("--executor-input", required=True, help="KFP's ExecutorInput as JSON")
    parser.add_argument("--paths", type=json.loads, default={}, help="paths of artifacts in this pod by URI, as JSON")
    given = parser.parse_args(arguments)
    if os.environ.get(ROLE_VARIABLE) == SCHEDULER_ROLE:
        from kfp_mindspore.training import init_distributed

        init_distributed()
        return
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-function-") as scratch:
        executor_input = json.loads(given.executor_input)
        if get_rank() != 0:
            executor_input = redirect_outputs(executor_input, scratch)
        run_function(given.source, given.function, executor_input, scratch, given.paths)


def get_rank() -> int:
    """Return this worker's rank; 0 for a single worker."""
    return int(os.environ.get(NODE_ID_VARIABLE) or 0)


def redirect_outputs(executor_input: dict[str, Any], scratch: str) -> dict[str, Any]:
    """Return an ExecutorInput with the outputs in a scratch directory, for workers other than 0.

    Args:
        executor_input: KFP's ExecutorInput; unchanged.
        scratch: The directory.
    """
    changed: dict[str, Any] = json.loads(json.dumps(executor_input))
    outputs = changed["outputs"]
    outputs["outputFile"] = str(Path(scratch, "outputs", "executor_output.json"))
    for name, parameter in outputs.get("parameters", {}).items():
        parameter["outputFile"] = str(Path(scratch, "outputs", name))
    for name, entry in outputs.get("artifacts", {}).items():
        for artifact in entry.get("artifacts", []):
            artifact["uri"] = str(Path(scratch, "outputs", name))
    return changed


def run_function(
    source: str, name: str, executor_input: dict[str, Any], scratch: str, paths: Mapping[str, str] | None = None
) -> None:
    """Run a module's function by kfp's executor, which writes the outputs.

    Args:
        source: The module's source; the function may be wrapped by `launch_function`.
        name: Function name.
        executor_input: KFP's ExecutorInput.
        scratch: The module file's directory, which `inspect.getsource` reads.
        paths: Artifact paths in this pod by URI; such an output's URI in the ExecutorInput is the path.
    """
    from kfp.dsl.executor import Executor

    file = Path(scratch, "component.py")
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("component", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)
    executor = Executor(executor_input=executor_input, function_to_execute=getattr(function, "__wrapped__", function))
    _set_paths(executor, paths or {})
    executor.execute()


def _set_paths(executor: Executor, paths: Mapping[str, str]) -> None:
    """Let artifacts have their paths in this pod; KFP's own paths for URIs do not exist here."""
    inputs = [entry if isinstance(entry, list) else [entry] for entry in executor.input_artifacts.values()]
    for artifact in (artifact for entry in inputs for artifact in entry):
        if artifact.uri in paths:
            artifact.custom_path = paths[artifact.uri]
            # KFP derives another path from this flag, in spite of the custom one.
            artifact.metadata.pop("_kfp_workspace", None)
    uris = {path: uri for uri, path in paths.items()}
    for artifact in executor.output_artifacts.values():
        if artifact.uri in uris:
            artifact.custom_path, artifact.uri = artifact.uri, uris[artifact.uri]


if __name__ == "__main__":
    main()
