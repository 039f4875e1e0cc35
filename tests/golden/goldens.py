"""Generated files under version control: compiled components and pipelines, READMEs, Kubernetes manifests."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT
from tests.golden.readme import render_index, render_readme

ROOT = Path(__file__).parents[2]
DSL = Path(__file__).parent / "dsl"
KINDS = Path(__file__).parent / "kinds"
CHART = "kfp-mindspore"
CHART_FILES = (
    *("Chart.yaml", "values.yaml", "values.schema.json"),
    *(f"templates/{name}.yaml" for name in ("definition", "operator", "runtimes", "pipelines", "monitoring")),
)
DASHBOARDS = ("operator", "model-server", "language-models")


def list_components() -> list[Path]:
    """Return the folders of all components."""
    return sorted(file.parent for file in (ROOT / "components").glob("*/*/component.py"))


def list_pipelines() -> list[Path]:
    """Return the folders of all pipelines."""
    return sorted(file.parent for file in (ROOT / "pipelines").glob("*/*/pipeline.py"))


def get_module_name(folder: Path) -> str:
    """Return the package that exports a component or pipeline."""
    return f"kfp_mindspore.{folder.parents[1].name}"


def load(folder: Path) -> Any:
    """Import a component or pipeline."""
    return getattr(importlib.import_module(get_module_name(folder)), folder.name)


def list_goldens() -> dict[Path, Callable[[], str]]:
    """Return the function that renders each golden file."""
    goldens: dict[Path, Callable[[], str]] = {}
    for folder, name in [
        *((folder, "component.yaml") for folder in list_components()),
        *((folder, "pipeline.yaml") for folder in list_pipelines()),
    ]:
        goldens[folder / name] = lambda folder=folder: compile_text(load(folder))  # type: ignore[misc]
        goldens[folder / "README.md"] = partial(render_readme, folder)
    for category, folders in groupby([*list_components(), *list_pipelines()], key=lambda folder: folder.parent):
        goldens[category / "README.md"] = partial(render_index, category, list(folders))
    for prefix, model_format in (("", MODEL_FORMAT), ("lm-", LANGUAGE_FORMAT)):
        for name, namespace in (("runtime", None), ("servingruntime", "default")):
            goldens[ROOT / "serving" / f"{prefix}{name}.yaml"] = partial(render_runtime, namespace, model_format)
    goldens[ROOT / "config" / "operator" / "base" / "crd.yaml"] = render_definition
    for name in CHART_FILES:
        goldens[ROOT / "charts" / CHART / name] = partial(render_chart_file, name)
    for name in DASHBOARDS:
        goldens[ROOT / "config" / "monitoring" / "dashboards" / f"{name}.json"] = partial(render_dashboard_file, name)
    goldens[ROOT / "config" / "trainer" / "runtimes.yaml"] = render_training_runtimes
    for kind in ("MPIJob", "TrainJob", "AscendJob", "volcano", "RayJob", "legacy", "first-generation"):
        goldens[KINDS / f"{kind.lower()}.yaml"] = partial(render_kind, kind)
    for file in sorted(DSL.glob("*.py")):
        goldens[file.with_suffix(".yaml")] = partial(compile_file, file)
    return goldens


def render_kind(kind: str) -> str:
    """Return `job.yaml` as another kind."""
    import yaml

    from kfp_mindspore.msjob import MSJob

    manifests = MSJob.from_yaml((KINDS / "job.yaml").read_text()).to(kind)
    text: str = yaml.safe_dump_all(manifests, sort_keys=False)
    return text


def compile_text(pipeline: Any) -> str:
    """Compile a component or pipeline of kfp."""
    from kfp import compiler

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "compiled.yaml")
        compiler.Compiler().compile(pipeline, str(file))
        return file.read_text()


def compile_file(file: Path) -> str:
    """Compile the pipeline `golden` of a file."""
    spec = importlib.util.spec_from_file_location(f"golden_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return compile_text(module.golden)


def render_runtime(namespace: str | None, model_format: str) -> str:
    """Return the output of `kfp-mindspore service runtime`; a namespaced one without its namespace."""
    from kfp_mindspore.inference.runtime import build_serving_runtime, render_serving_runtime
    from kfp_mindspore.settings import PLACEHOLDER_SERVER_IMAGE

    manifest = build_serving_runtime(PLACEHOLDER_SERVER_IMAGE, namespace=namespace, model_format=model_format)
    manifest["metadata"].pop("namespace", None)
    return render_serving_runtime(manifest)


def render_definition() -> str:
    """Return the manifest of MSJob's definition."""
    from kfp_mindspore.msjob.api.crd import build_crd
    from kfp_mindspore.operator.install.objects import dump_documents

    return "# Generated from kfp_mindspore/msjob/api/crd.py by `make golden`.\n" + dump_documents([build_crd()])


def render_chart_file(name: str) -> str:
    """Return a file of the Helm chart."""
    from release.chart import render_chart

    return render_chart()[name]


def render_dashboard_file(name: str) -> str:
    """Return a dashboard of Grafana."""
    from release.dashboards import render_dashboard

    return render_dashboard(name)


def render_training_runtimes() -> str:
    """Return the output of `kfp-mindspore trainer runtime`."""
    from click.testing import CliRunner

    from kfp_mindspore.cli.trainer import trainer

    header = "# Written by `kfp-mindspore trainer runtime` (`make golden`), whose --image replaces the placeholder.\n"
    return header + CliRunner().invoke(trainer, ["runtime"], env={"KFP_MINDSPORE_IMAGE": ""}).stdout
