"""Compiled pipelines whose steps run as pods of a node, one after the other, as Kubeflow Pipelines runs them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kfp_mindspore.runs.compiled.spec import list_parameters, list_steps, read_spec
from tests.support.kube.step_pods import StepRunner
from tests.support.remote.object_store import BUCKET, ObjectStore

_CHANNEL = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
_ROOT = f"s3://{BUCKET}/"


class PipelineRun:
    """A run of a pipeline without conditions and loops.

    Args:
        runner: Runs its steps.
        package: The compiled pipeline.
        store: The store of its artifacts.
        directory: Directory of the node in place of KFP's launcher, which downloads and uploads artifacts.
    """

    def __init__(self, runner: StepRunner, package: Path, store: ObjectStore, directory: Path) -> None:
        self.runner, self.package, self.store, self.directory = runner, package, store, directory
        self.id = f"run-{secrets.token_hex(4)}"
        self.spec = read_spec(package)
        self.outputs: dict[str, dict[str, Any]] = {}
        self.uris: dict[tuple[str, str], str] = {}

    def run(self, arguments: Mapping[str, Any], changes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Run all steps and return their output parameters by task.

        Args:
            arguments: Arguments of the pipeline.
            changes: Parameters of tasks that the pipeline does not have, by task.
        """
        values = {parameter.name: parameter.default for parameter in list_parameters(self.spec)} | dict(arguments)
        for name in list_steps(self.spec):
            self._run_task(name, values, changes.get(name, {}))
        return self.outputs

    def _run_task(self, name: str, values: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        inputs = self.spec["root"]["dag"]["tasks"][name].get("inputs", {})
        parameters = {key: self._resolve(value, values) for key, value in inputs.get("parameters", {}).items()}
        sources = {key: value["taskOutputArtifact"] for key, value in inputs.get("artifacts", {}).items()}
        artifacts = {
            key: self.uris[source["producerTask"], source["outputArtifactKey"]] for key, source in sources.items()
        }
        for uri in artifacts.values():
            self._download(uri.removeprefix(_ROOT))
        step = self.runner.create(
            self.package,
            artifacts,
            volumes={"artifacts": (f"/s3/{BUCKET}", {"hostPath": {"path": str(self.directory), "type": "Directory"}})},
            run=self.id,
            task_name=name,
            **{key: _replace(value, parameters) for key, value in parameters.items()} | dict(changes),
        )
        output = step.finish()
        self.outputs[name] = output.get("parameterValues", {})
        for key in self.spec["components"][f"comp-{name}"].get("outputDefinitions", {}).get("artifacts", {}):
            self.uris[name, key] = f"{_ROOT}{step.key}/{key}"
        for file in filter(Path.is_file, (self.directory / step.key).rglob("*")):
            self.store.put(str(file.relative_to(self.directory)), file.read_bytes())

    def _resolve(self, value: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        if "componentInputParameter" in value:
            return values[value["componentInputParameter"]]
        if "taskOutputParameter" in value:
            source = value["taskOutputParameter"]
            return self.outputs[source["producerTask"]][source["outputParameterKey"]]
        return value["runtimeValue"]["constant"]

    def _download(self, prefix: str) -> None:
        for key in self.store.list(f"{prefix}/"):
            file = self.directory / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.store.get(key))


def _replace(value: Any, parameters: Mapping[str, Any]) -> Any:
    """Replace the placeholders of inputs in a constant, as KFP's driver does."""
    if isinstance(value, dict):
        return {key: _replace(entry, parameters) for key, entry in value.items()}
    if isinstance(value, list):
        return [_replace(entry, parameters) for entry in value]
    if not isinstance(value, str):
        return int(value) if isinstance(value, float) and value.is_integer() else value
    if found := _CHANNEL.fullmatch(value):
        return parameters[found[1]]
    return _CHANNEL.sub(lambda match: str(parameters[match[1]]), value)
