"""Compiled files are valid for a cluster, and component directories follow the convention."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import docstring_parser
import pytest
import yaml

from kfp_mindspore.settings import PLACEHOLDER_IMAGE
from tests.golden.goldens import DSL, ROOT, get_module_name, list_components, list_pipelines, load
from tests.golden.readme import METADATA_KEYS, read_metadata

COMPONENTS = list_components()
PIPELINES = list_pipelines()
COMPILED = [
    *(folder / "component.yaml" for folder in COMPONENTS),
    *(folder / "pipeline.yaml" for folder in PIPELINES),
    *(file.with_suffix(".yaml") for file in sorted(DSL.glob("*.py"))),
]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _read(file: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


@pytest.mark.parametrize("file", COMPILED, ids=_name)
def test_compiled_file_is_pipeline_spec(file: Path) -> None:
    from google.protobuf import json_format
    from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
    from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec

    document, *platforms = _read(file)
    spec = json_format.ParseDict(document, PipelineSpec())
    assert spec.root.dag.tasks
    for platform in platforms:
        json_format.ParseDict(platform, PlatformSpec())
        for executor in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
            json_format.ParseDict(executor, KubernetesExecutorConfig())


@pytest.mark.parametrize("file", COMPILED, ids=_name)
def test_steps_have_placeholder_image_and_install_nothing(file: Path) -> None:
    for executor in _read(file)[0]["deploymentSpec"]["executors"].values():
        if "importer" in executor:
            continue
        assert executor["container"]["image"] == PLACEHOLDER_IMAGE
        assert "pip install" not in " ".join(executor["container"]["command"])


@pytest.mark.parametrize("folder", [*COMPONENTS, *PIPELINES], ids=_name)
def test_component_directory_follows_convention(folder: Path) -> None:
    metadata = read_metadata(folder)
    assert tuple(metadata) == METADATA_KEYS
    assert metadata["name"] == folder.name
    assert metadata["stability"] in ("experimental", "alpha", "beta", "stable")
    assert set(metadata["dependencies"]) == {"kubeflow", "external_services"}
    for needs in metadata["dependencies"].values():
        assert all(re.fullmatch(r"(>=|<=|==)?\d+\.\d+\.\d+", need["version"]) for need in needs)
    verified = metadata["lastVerified"]
    assert isinstance(verified, datetime.datetime)
    assert verified.tzinfo is not None
    assert yaml.safe_load((folder / "OWNERS").read_text())["approvers"]
    if folder in COMPONENTS:
        assert (folder / "tests" / "test_component_unit.py").is_file()
        assert (folder / "tests" / "test_component_local.py").is_file()


MODULES = sorted(file for name in ("components", "pipelines") for file in (ROOT / name).rglob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=_name)
def test_module_imports_only_kfp_pytest_and_standard_library(file: Path) -> None:
    """Assert the import guard of kubeflow/pipelines-components: other imports are relative or inside functions."""
    for node in ast.parse(file.read_text()).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            assert name.partition(".")[0] in {"kfp", "pytest", *sys.stdlib_module_names}, name


@pytest.mark.parametrize("file", sorted((ROOT / "components").glob("*/*/tests/*.py")), ids=_name)
def test_tests_of_component_need_its_folder_and_installed_packages_only(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            # Two levels are the component's folder.
            assert node.level <= 2, f"line {node.lineno}"
            assert node.level or (node.module or "").partition(".")[0] not in ("tests", "components", "pipelines")


@pytest.mark.parametrize("file", [file for file in MODULES if file.name != "__init__.py"], ids=_name)
def test_folder_of_asset_is_component_or_pipeline(file: Path) -> None:
    """Assert what CI of kubeflow/pipelines-components takes for an asset: each folder below a category."""
    _, *below = file.relative_to(ROOT).parts[:-1]
    if len(below) >= 2:
        asset = ROOT.joinpath(*file.relative_to(ROOT).parts[:3])
        assert asset in [*COMPONENTS, *PIPELINES]


@pytest.mark.parametrize("file", MODULES, ids=_name)
def test_directory_of_module_is_package(file: Path) -> None:
    assert (file.parent / "__init__.py").is_file()


@pytest.mark.parametrize("folder", COMPONENTS, ids=_name)
def test_component_body_uses_one_module_of_steps(folder: Path) -> None:
    """Assert that a body calls one function; the classes that it imports are its options."""
    tree = ast.parse((folder / "component.py").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    (module,) = (
        node.module
        for node in imports
        for alias in node.names
        if node.module and node.module.startswith("kfp_mindspore") and alias.name.islower()
    )
    # A notice describes the run, whose readers are in `runs`.
    assert module.startswith("kfp_mindspore.runs.notice" if folder.name == "notify" else "kfp_mindspore.steps")


@pytest.mark.parametrize("folder", [*COMPONENTS, *PIPELINES], ids=_name)
def test_inputs_and_outputs_are_documented(folder: Path) -> None:
    component = load(folder)
    function = getattr(component, "python_func", None) or component.pipeline_func
    params = docstring_parser.parse(inspect.getdoc(function) or "").params
    described = {param.arg_name for param in params}
    # The README generator of kubeflow/pipelines-components breaks its tables at the line breaks of descriptions.
    assert not [param.arg_name for param in params if "\n" in (param.description or "")]
    assert set(inspect.signature(function).parameters) == described, get_module_name(folder)
    for name, output in (component.component_spec.outputs or {}).items():
        assert name in described or output.description, name


@pytest.mark.parametrize("folder", COMPONENTS, ids=_name)
def test_example_pipeline_compiles(folder: Path, tmp_path: Path) -> None:
    """Load the file by its path, as the validator of kubeflow/pipelines-components does."""
    from kfp import compiler

    spec = importlib.util.spec_from_file_location(f"example_{folder.name}", folder / "example_pipelines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compiler.Compiler().compile(module.example_pipeline, str(tmp_path / "example.yaml"))
    (document, *_) = _read(tmp_path / "example.yaml")
    assert f"comp-{folder.name.replace('_', '-')}" in document["components"]


@pytest.mark.parametrize(
    ("pipeline", "uncached"),
    [
        ("digits_lifecycle", {"deploy-kserve"}),
        ("retrain_and_promote", {"load-dataset", "compare-models", "deploy-kserve"}),
    ],
)
def test_lifecycle_has_five_steps_without_condition(pipeline: str, uncached: set[str]) -> None:
    spec = _read(ROOT / "pipelines" / "training" / pipeline / "pipeline.yaml")[0]
    tasks = spec["root"]["dag"]["tasks"]
    assert len(tasks) == 5
    # A condition is a DAG of its own, with a driver pod.
    assert not [name for name, component in spec["components"].items() if "dag" in component]
    assert {name for name, task in tasks.items() if "enableCache" not in task.get("cachingOptions", {})} == uncached


def test_package_exports_components_lazily() -> None:
    import kfp_mindspore.components as package

    assert sorted(folder.name for folder in COMPONENTS) == sorted(package.__all__)
    for folder in COMPONENTS:
        assert getattr(package, folder.name) is load(folder)
    script = "import sys, kfp_mindspore.components, kfp_mindspore.dsl; assert 'kfp' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_kuberay_examples_are_those_of_this_release() -> None:
    from kfp_mindspore.ray.job import parse_arguments

    job, service = (
        yaml.safe_load((ROOT / "examples" / "kuberay" / f"{name}.yaml").read_text())
        for name in ("rayjob", "rayservice")
    )
    exported = yaml.safe_load((ROOT / "tests" / "golden" / "kinds" / "rayjob.yaml").read_text())["spec"]
    for cluster in (job["spec"]["rayClusterSpec"], service["spec"]["rayClusterConfig"]):
        assert cluster["rayVersion"] == exported["rayClusterSpec"]["rayVersion"]
    words = job["spec"]["entrypoint"].split()
    assert words[:3] == exported["entrypoint"].split()[:3]
    assert parse_arguments(words[3:])["workers"] == job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]
