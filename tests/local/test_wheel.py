"""The wheel of a release in a clean environment: its commands, and the command of each compiled step."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore import __version__
from kfp_mindspore.files import digest_file
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.runs.compiled.spec import read_spec
from release.files import build_packages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
TYPES = {"NUMBER_INTEGER": int, "NUMBER_DOUBLE": float}


def _call(argv: list[str], **options: Any) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    assert done.returncode == 0, f"{argv[:4]} exited with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def _commit(folder: Path) -> Path:
    """Return a repository with a commit of this checkout's sources."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "kfp_mindspore_cli.py", ".gitattributes", ".gitignore"):
        shutil.copyfile(ROOT / name, folder / name)
    for name in ("kfp_mindspore", "components", "pipelines", "serving"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "Sources"]):
        _call(["git", *words], cwd=folder)
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _commit(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def packages(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packages")
    build_packages(repository, output)
    return output


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (file,) = packages.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a virtual environment with the wheel and the pinned dependencies of its extras."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    _call([str(UV), "venv", "--quiet", "--python", sys.executable, str(venv)])
    _call(
        [
            *(str(UV), "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")),
            *("--constraint", str(ROOT / "constraints.txt"), f"{wheel}[all]"),
        ]
    )
    return venv


class Pipeline:
    """Runs the steps of a compiled pipeline one by one by their commands, like a KFP runner.

    Args:
        spec: The compiled pipeline.
        root: Directory of the outputs.
        environment: The steps' environment.
    """

    def __init__(self, spec: Mapping[str, Any], root: Path, environment: Mapping[str, str]) -> None:
        self.spec = spec
        self.root = root
        self.environment = environment
        self.outputs: dict[str, dict[str, Any]] = {}

    def run(self, dag: Mapping[str, Any], scope: Mapping[str, Any]) -> None:
        """Run the tasks of a DAG in topological order; `scope` contains its inputs by name."""
        done: set[str] = set()
        tasks = dict(dag["tasks"])
        while tasks:
            name = next(name for name, task in tasks.items() if done.issuperset(task.get("dependentTasks", [])))
            task = tasks.pop(name)
            component = self.spec["components"][task["componentRef"]["name"]]
            inputs = self._resolve_inputs(task.get("inputs", {}), component, scope)
            self.outputs[name] = self._execute(name, component, inputs)
            done.add(name)

    def _resolve_inputs(
        self, given: Mapping[str, Any], component: Mapping[str, Any], scope: Mapping[str, Any]
    ) -> dict[str, Any]:
        definitions = component.get("inputDefinitions", {}).get("parameters", {})
        values = {name: entry["defaultValue"] for name, entry in definitions.items() if "defaultValue" in entry}
        for name, source in {**given.get("parameters", {}), **given.get("artifacts", {})}.items():
            values[name] = self._resolve(source, scope)
        for name, value in values.items():
            values[name] = self._substitute(value, values)
            if definitions.get(name, {}).get("parameterType") == "NUMBER_INTEGER":
                values[name] = int(values[name])
        return values

    def _resolve(self, source: Mapping[str, Any], scope: Mapping[str, Any]) -> Any:
        match source:
            case {"runtimeValue": {"constant": value}}:
                return value
            case {"componentInputParameter": name} | {"componentInputArtifact": name}:
                return scope[name]
            case {"taskOutputParameter": {"producerTask": task, "outputParameterKey": key}}:
                return self.outputs[task][key]
            case {"taskOutputArtifact": {"producerTask": task, "outputArtifactKey": key}}:
                return self.outputs[task][key]
        raise AssertionError(source)

    def _substitute(self, value: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(value, dict):
            return {key: self._substitute(entry, values) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._substitute(entry, values) for entry in value]
        if isinstance(value, str):
            return re.sub(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}", lambda it: str(values[it[1]]), value)
        return value

    def _execute(self, name: str, component: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
        root = self.root / name
        declared = component.get("outputDefinitions", {})
        artifacts = {
            key: {"name": key, "type": entry["artifactType"], "uri": str(root / key), "metadata": {}}
            for key, entry in declared.get("artifacts", {}).items()
        }
        given = component.get("inputDefinitions", {})
        executor_input = {
            "inputs": {
                "parameterValues": {key: value for key, value in inputs.items() if key not in given["artifacts"]}
                if "artifacts" in given
                else dict(inputs),
                "artifacts": {key: {"artifacts": [inputs[key]]} for key in given.get("artifacts", {}) if key in inputs},
            },
            "outputs": {
                "parameters": {key: {"outputFile": str(root / key)} for key in declared.get("parameters", {})},
                "artifacts": {key: {"artifacts": [entry]} for key, entry in artifacts.items()},
                "outputFile": str(root / "executor_output.json"),
            },
        }
        container = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        argv = [part.replace("{{$}}", json.dumps(executor_input)) for part in container["command"] + container["args"]]
        work = self.root / "work"
        work.mkdir(parents=True, exist_ok=True)
        _call(argv, env=self.environment, cwd=work)
        output = json.loads((root / "executor_output.json").read_text())
        for key, entry in output.get("artifacts", {}).items():
            artifacts[key] |= {"uri": entry["artifacts"][0]["uri"], "metadata": entry["artifacts"][0]["metadata"]}
        return {**artifacts, **output.get("parameterValues", {})}


@pytest.fixture
def steps_environment(environment: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a pod: PATH and home, nothing of this checkout."""
    with Lease.hold(tmp_path / "lease") as lease:
        yield {
            "PATH": os.pathsep.join([str(environment / "bin"), os.defpath]),
            "HOME": str(tmp_path),
            "KFP_MINDSPORE_HOME": str(tmp_path / "home"),
            "KFP_MINDSPORE_BACKEND": "local",
            **lease.environment,
        }


def test_commit_gives_same_bytes_elsewhere(repository: Path, packages: Path, tmp_path: Path) -> None:
    _call(["git", "clone", "--quiet", str(repository), str(tmp_path / "clone")])
    (tmp_path / "again").mkdir()
    build_packages(tmp_path / "clone", tmp_path / "again")
    first, second = (
        {path.name: digest_file(path) for path in folder.iterdir()} for folder in (packages, tmp_path / "again")
    )
    assert first == second
    assert {name.rpartition(".")[2] for name in first} == {"whl", "gz"}


def test_commands_run_from_the_wheel(environment: Path, repository: Path, tmp_path: Path) -> None:
    program = str(environment / "bin" / "kfp-mindspore")
    variables = {"PATH": os.defpath, "HOME": str(tmp_path), "KFP_MINDSPORE_HOME": str(tmp_path / "home")}
    commit = _call(["git", "rev-parse", "HEAD"], cwd=repository).strip()
    assert f"kfp-mindspore {__version__} (commit {commit}, MindSpore " in _call([program, "--version"], env=variables)
    assert "predicted" in _call([program, "demo"], env=variables, cwd=tmp_path)
    _call([program, "init", "project"], env=variables, cwd=tmp_path)
    _call(
        [program, "pipeline", "compile", "pipeline.py", "-o", "compiled.yaml"], env=variables, cwd=tmp_path / "project"
    )
    assert (tmp_path / "project" / "compiled.yaml").is_file()


def test_wheel_contains_package_without_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "kfp_mindspore/py.typed",
        "kfp_mindspore/commit.txt",
        "kfp_mindspore/__init__.pyi",
        "kfp_mindspore/components/training/train_msjob/component.py",
        "kfp_mindspore/components/training/train_msjob/component.yaml",
        "kfp_mindspore/components/training/train_msjob/metadata.yaml",
        "kfp_mindspore/components/training/train_msjob/README.md",
        "kfp_mindspore/pipelines/training/digits_lifecycle/pipeline.yaml",
        "kfp_mindspore/steps/evaluation/templates/evaluation.html.j2",
        "mindsporeserver/__main__.py",
        "kfp_mindspore/local/recorder/sitecustomize.py",
        "kfp_mindspore_cli.py",
    ):
        assert name in names
    assert not [name for name in names if "tests/" in name or "conftest" in name]


def test_compiled_steps_run_by_their_commands(
    environment: Path, steps_environment: dict[str, str], tmp_path: Path
) -> None:
    python = str(environment / "bin" / "python")
    package = Path(
        _call([python, "-c", "import kfp_mindspore; print(kfp_mindspore.__path__[0])"], cwd=tmp_path).strip()
    )
    assert package.is_relative_to(environment.resolve()) or package.is_relative_to(environment)
    spec = read_spec(package / "pipelines" / "training" / "digits_lifecycle" / "pipeline.yaml")
    root = spec["root"]
    arguments = {
        name: TYPES.get(entry["parameterType"], str)(entry["defaultValue"])
        for name, entry in root["inputDefinitions"]["parameters"].items()
    }
    pipeline = Pipeline(spec, tmp_path / "run", steps_environment)
    pipeline.run(root["dag"], {**arguments, "epochs": 3, "threshold": 0.5, "service_name": "from-the-wheel"})

    outputs = pipeline.outputs
    assert list(outputs) == ["load-dataset", "train-msjob", "export-mindir", "evaluate-mindir", "deploy-kserve"]
    assert outputs["load-dataset"]["test_samples"] == 360
    assert outputs["train-msjob"]["metrics"]["metadata"]["epoch"] == 3
    assert outputs["export-mindir"]["max_abs_diff"] <= 1e-5
    assert outputs["evaluate-mindir"]["value"] > 0.8
    assert outputs["evaluate-mindir"]["passed"] is True
    assert outputs["deploy-kserve"]["url"].startswith("http://")
    assert outputs["deploy-kserve"]["name"] == "from-the-wheel"
    assert outputs["deploy-kserve"]["deployed"] is True
    assert "32 samples tested" in outputs["deploy-kserve"]["verdict"]
    assert outputs["deploy-kserve"]["prediction"] in [str(digit) for digit in range(10)]
