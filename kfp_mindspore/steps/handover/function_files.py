"""An `@msjob_component`'s artifacts and outputs, on this machine and in job pods."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError
from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.settings import KUBERNETES, get_backend_name
from kfp_mindspore.steps.handover.checkpoints import StepCheckpoints
from kfp_mindspore.steps.handover.storage import JobStorage, get_root_uri, open_storage
from kfp_mindspore.steps.handover.storage_spec import parse_storage
from kfp_mindspore.stores.artifact_store import StoreError, join_uri

_EXECUTOR_OUTPUT = "msjob_executor_output.json"
_PARAMETERS = "msjob-parameters"


class LocalFunctionFiles:
    """This machine's files, at KFP's own paths.

    Args:
        executor_input: The step's KFP ExecutorInput.
    """

    def __init__(self, executor_input: Mapping[str, Any]) -> None:
        self.executor_input: dict[str, Any] = copy.deepcopy(dict(executor_input))
        root = Path(executor_input["outputs"]["outputFile"]).absolute().parent
        self.root = str(root)
        self._checkpoints = StepCheckpoints(root / "checkpoints", [executor_input.get("inputs", {})])
        self.checkpoint_dir = str(self._checkpoints.path)
        self._output = root / _EXECUTOR_OUTPUT
        self._output.unlink(missing_ok=True)
        self.executor_input["outputs"]["outputFile"] = str(self._output)
        self.paths: dict[str, str] = {}
        self.patch = PodPatch()
        self.wrapper: tuple[str, ...] = ()
        self.explain_failures = contextlib.nullcontext

    def read_output(self) -> dict[str, Any] | None:
        """Delete checkpoints that no run keeps, and return worker 0's ExecutorOutput."""
        self._checkpoints.delete()
        if not self._output.is_file():
            return None
        output: dict[str, Any] = json.loads(self._output.read_text())
        return output


class ArtifactFunctionFiles:
    """Files in pods: artifacts by URI, and KFP's ExecutorOutput and parameter files below the step's output root.

    Args:
        storage: How the pods and this process access the artifacts.
        root: The step's output root URI.
        executor_input: The step's KFP ExecutorInput.
    """

    def __init__(self, storage: JobStorage, root: str, executor_input: Mapping[str, Any]) -> None:
        self.root = root
        self.checkpoint_dir = storage.checkpoint_dir
        self.patch = storage.patch
        self.wrapper = storage.wrapper
        self.explain_failures = storage.explain_failures
        self._artifacts = storage.artifacts
        outputs = executor_input["outputs"]
        self._parameter_files = {
            name: Path(entry["outputFile"]) for name, entry in outputs.get("parameters", {}).items()
        }
        written = {uri: storage.outputs[f"artifacts/{name}"] for name, uri in _list_outputs(executor_input)}
        self.paths = {**storage.inputs, **written}
        self.executor_input: dict[str, Any] = copy.deepcopy(dict(executor_input))
        changed = self.executor_input["outputs"]
        changed["outputFile"] = storage.outputs[_EXECUTOR_OUTPUT]
        for name, entry in changed.get("parameters", {}).items():
            entry["outputFile"] = storage.outputs[f"parameters/{name}"]
        for entry in changed.get("artifacts", {}).values():
            for artifact in entry.get("artifacts", []):
                artifact["uri"] = written.get(artifact["uri"], artifact["uri"])

    def read_output(self) -> dict[str, Any] | None:
        """Write the parameter files and return worker 0's ExecutorOutput.

        Raises:
            KfpMindSporeError: The store cannot be reached or denies the request.
        """
        try:
            content = self._artifacts.read_bytes(join_uri(self.root, _EXECUTOR_OUTPUT))
            if content is None:
                return None
            for name, file in self._parameter_files.items():
                value = self._artifacts.read_bytes(join_uri(self.root, f"{_PARAMETERS}/{name}"))
                if value is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(value)
        except StoreError as error:
            raise KfpMindSporeError(f"the job has succeeded, but {error}") from error
        output: dict[str, Any] = json.loads(content)
        for entry in output.get("artifacts", {}).values():
            for artifact in entry["artifacts"]:
                # A path in the pod.
                artifact.pop("custom_path", None)
        return output


def open_function_files(
    storage: str, executor_input: Mapping[str, Any], arguments: Mapping[str, Any], patch: PodPatch | None = None
) -> LocalFunctionFiles | ArtifactFunctionFiles:
    """Return a function's files in the job's workers.

    Args:
        storage: The parameter `storage`.
        executor_input: The step's KFP ExecutorInput.
        arguments: The function's arguments.
        patch: Volumes and mounts that the pods have besides.

    Raises:
        ValidationError: `storage` is invalid.
        UserError: The pods cannot access an artifact; nothing was submitted.
    """
    if get_backend_name() != KUBERNETES:
        parse_storage(storage)
        return LocalFunctionFiles(executor_input)
    artifacts = dict(_list_outputs(executor_input))
    outputs = executor_input["outputs"]
    root = get_root_uri(outputs["outputFile"], list(artifacts.values()))
    opened = open_storage(
        storage,
        root=root,
        inputs=dict(_list_inputs(executor_input, arguments)),
        outputs={
            **{f"artifacts/{name}": uri for name, uri in artifacts.items()},
            **{f"parameters/{name}": join_uri(root, f"{_PARAMETERS}/{name}") for name in outputs.get("parameters", {})},
            _EXECUTOR_OUTPUT: join_uri(root, _EXECUTOR_OUTPUT),
        },
        patch=patch,
    )
    return ArtifactFunctionFiles(opened, root, executor_input)


def _list_outputs(executor_input: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, entry in executor_input["outputs"].get("artifacts", {}).items():
        # KFP writes the step log artifact itself.
        if name != "executor-logs":
            yield from ((name, artifact["uri"]) for artifact in entry.get("artifacts", [])[:1])


def _list_inputs(executor_input: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the URI and the path in this process for each input artifact."""
    for name, entry in executor_input.get("inputs", {}).get("artifacts", {}).items():
        given = arguments.get(name)
        items = given if isinstance(given, list) else [given]
        for artifact, item in zip(entry.get("artifacts", []), items, strict=False):
            # An InputPath parameter's argument is a path.
            yield artifact["uri"], str(item if isinstance(item, str) else getattr(item, "path", ""))
