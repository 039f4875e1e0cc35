"""Counts, defaults and versions in README and docs equal those of the code."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kfp_mindspore import settings
from kfp_mindspore.cli.main import INTERRUPTED_EXIT_CODE, cli
from kfp_mindspore.data.sources.named import READERS
from kfp_mindspore.errors import GateNotMetError, KfpMindSporeError, UserError
from kfp_mindspore.evaluation import compare_predictions, get_metric
from kfp_mindspore.evaluation.metrics import METRICS
from kfp_mindspore.images.runtime.extras import list_missing_extras
from kfp_mindspore.images.runtime.image import DEFAULT_EXTRAS
from kfp_mindspore.inference import KServeBackend
from kfp_mindspore.msjob.api.names import MAXIMUM_NAME
from kfp_mindspore.msjob.api.waiting import NO_OPERATOR, get_start_limit
from kfp_mindspore.msjob.kinds import KINDS
from kfp_mindspore.operator.decisions.spares import SPARE_DELAY_SECONDS
from kfp_mindspore.runs.cluster.step_needs import list_needed_extras
from kfp_mindspore.runs.compiled.sources import list_pipelines as list_packaged
from kfp_mindspore.runs.compiled.sources import load_spec
from mindsporeserver.language.fields.requests import CHAT_FIELDS, COMPLETION_FIELDS, UNSUPPORTED_FIELDS
from mindsporeserver.options import build_parser
from tests.golden.goldens import ROOT, list_components, list_pipelines, load
from tests.matrix.environments import MINDSPORE_VERSIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NUMERALS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
# Extras for work on this package.
DEVELOPMENT = {"dev", "docs"}
UNSCHEDULABLE = "unschedulable_seconds"
BACKOFF = "runPolicy.backoffLimit"
DELAY = "max_delay_ms"


def read_page(name: str) -> str:
    """Return a page with its paragraphs on one line each, so that patterns do not depend on line breaks."""
    return re.sub(r"(?<=\S)\n(?=[^\s|`#*-])", " ", re.sub(r"\n {2,}(?=[^-\s])", "\n", (ROOT / name).read_text()))


def list_rows(name: str, heading: str) -> list[list[str]]:
    """Return the rows of the table whose first column has a heading."""
    lines = (ROOT / name).read_text().splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def list_names(name: str, heading: str) -> set[str]:
    """Return the names in backticks in the first column of a table."""
    return {word for row in list_rows(name, heading) for word in re.findall(r"`([^`]+)`", row[0])}


def read_option(command: str, option: str) -> Any:
    """Return the default of an option of the command line."""
    context, found = click.Context(cli), cli
    for word in command.split():
        child = found.get_command(context, word)  # type: ignore[attr-defined]
        assert child is not None
        context, found = click.Context(child, context), child
    return {parameter.name: parameter for parameter in found.params}[option].get_default(context)


def read_default(function: Callable[..., Any], parameter: str) -> Any:
    """Return the default of a parameter."""
    return inspect.signature(function).parameters[parameter].default


def read_project() -> dict[str, Any]:
    """Return the project table of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def list_extras() -> set[str]:
    """Return the extras."""
    return set(read_project()["optional-dependencies"])


def list_pythons() -> list[str]:
    """Return the Python versions of the classifiers."""
    prefix = "Programming Language :: Python :: 3."
    return [f"3.{name.removeprefix(prefix)}" for name in read_project()["classifiers"] if name.startswith(prefix)]


def read_module(folder: str, module: str) -> str:
    """Return the version of a Go module that the test cluster is built from."""
    text = (ROOT / "tests/cluster/infrastructure" / folder / "go.mod").read_text()
    return re.search(rf"{re.escape(module)} v(\S+)", text)[1]  # type: ignore[index]


def read_constraint(package: str) -> str:
    """Return the pinned version of a package."""
    return re.search(rf"^{package}==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]  # type: ignore[index]


def read_crd_defaults() -> dict[str, Any]:
    """Return the defaults of MSJob's definition by the last two parts of their path."""
    definition = yaml.safe_load((ROOT / "config/operator/base/crd.yaml").read_text())
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    policy = spec["runPolicy"]["properties"]
    replica = spec["msReplicaSpecs"]
    replica = (replica.get("additionalProperties") or next(iter(replica["properties"].values())))["properties"]
    return {
        **{name: replica[name]["default"] for name in ("replicas", "restartPolicy")},
        **{f"runPolicy.{name}": policy[name]["default"] for name in ("backoffLimit", "cleanPodPolicy", "suspend")},
    }


def count_steps() -> int:
    """Return the number of steps of the digits lifecycle."""
    spec = next(iter(yaml.safe_load_all((ROOT / "pipelines/training/digits_lifecycle/pipeline.yaml").read_text())))
    return len(spec["root"]["dag"]["tasks"])


def read_lifecycle_threshold() -> str:
    """Return the default threshold of the digits lifecycle as a percentage."""
    spec = load(ROOT / "pipelines/training/digits_lifecycle").pipeline_spec
    value = spec.root.input_definitions.parameters["threshold"].default_value.number_value
    return f"{value:.0%}".removesuffix("%")


def count_digits() -> str:
    """Return the number of scikit-learn's digits."""
    from sklearn.datasets import load_digits

    return f"{len(load_digits().images):,}"


def build_runtime() -> dict[str, Any]:
    """Return the container of the serving runtime."""
    from kfp_mindspore.inference.runtime import build_serving_runtime

    container: dict[str, Any] = build_serving_runtime("image")["spec"]["containers"][0]
    return container


def read_flag(flag: str) -> str:
    """Return a flag of the serving runtime's server."""
    (value,) = [word.partition("=")[2] for word in build_runtime()["args"] if word.startswith(f"--{flag}=")]
    return value


def read_startup_minutes() -> int:
    """Return the deadline of the runtime's startup probe."""
    probe = build_runtime()["startupProbe"]
    return int(probe["periodSeconds"] * probe["failureThreshold"] / 60)


def read_resources() -> tuple[str, ...]:
    """Return CPU and GiB of the runtime's requests and limits."""
    resources = build_runtime()["resources"]
    found = [resources[kind][name] for kind in ("requests", "limits") for name in ("cpu", "memory")]
    return tuple("0.5" if value == "500m" else value.removesuffix("Gi") for value in found)


# Document, pattern whose groups are the documented values, and the values of the code.
VALUES: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    ("README.md", r"Python (3\.\d+).(3\.\d+) and make", lambda: (list_pythons()[0], list_pythons()[-1])),
    ("README.md", r"scikit-learn's ([\d,]+) digits", count_digits),
    ("README.md", r"deploys nothing below (\d+) % test accuracy", read_lifecycle_threshold),
    ("README.md", r"on KServe ([\d.]+) in", lambda: read_module("kserve", "kserve/kserve")[:4]),
    ("docs/install.md", r"Python (3\.\d+), (3\.\d+) or (3\.\d+) on", lambda: tuple(list_pythons())),
    ("docs/install.md", r"MindSpore ([\d.]+), ([\d.]+) or ([\d.]+) \(", lambda: MINDSPORE_VERSIONS),
    ("docs/install.md", r"pins MindSpore ([\d.]*\d)\.", lambda: read_constraint("mindspore")),
    ("pyproject.toml", r"mindspore>=([\d.]+),", lambda: MINDSPORE_VERSIONS[0]),
    ("docs/concepts.svg", r"One pipeline: (\w+) KFP components", lambda: NUMERALS[count_steps()]),
    ("docs/cluster-tutorial.md", r"and KServe ([\d.]+\d) in", lambda: read_module("kserve", "kserve/kserve")),
    ("docs/cluster-tutorial.md", r"cluster-scoped-resources\?ref=([\d.]+)", lambda: read_constraint("kfp")),
    ("docs/operator.md", r"Tested with Volcano ([\d.]+)", lambda: read_module("volcano", "volcano.sh/volcano")),
    ("docs/operator.md", r"scheduler-plugins ([\d.]*\d)\.", lambda: read_module("coscheduling", "scheduler-plugins")),
    (
        "docs/operator.md",
        r"Deployment \| (\w+) replicas",
        lambda: NUMERALS[read_option("operator install", "replicas")],
    ),
    ("docs/ascend-clusters.md", r"pins MindSpore ([\d.]*\d)\.", lambda: read_constraint("mindspore")[:3]),
    ("docs/msjob.md", r"seconds; (\d+) by default", lambda: f"{read_option('job wait', 'timeout'):.0f}"),
    ("docs/msjob.md", r"`KFP_MINDSPORE_HANG_SECONDS` \((\d+);", lambda: f"{settings.DEFAULT_HANG_SECONDS:.0f}"),
    ("docs/msjob.md", r"; (\w+) times as long before the first", lambda: NUMERALS[int(settings.FIRST_STEP_FACTOR)]),
    ("docs/training.md", r"`KFP_MINDSPORE_HANG_SECONDS` \((\d+)\)", lambda: f"{settings.DEFAULT_HANG_SECONDS:.0f}"),
    (
        "docs/from-kubeflow-sdk.md",
        r"at most (\w+) times by default",
        lambda: NUMERALS[read_crd_defaults()[BACKOFF]],
    ),
    ("docs/msjob.md", r"of at most (\d+) characters", lambda: str(MAXIMUM_NAME)),
    ("docs/operator.md", r"(\d+) s after a gang has started", lambda: str(SPARE_DELAY_SECONDS)),
    ("docs/pipelines.md", r"no operator reconciles[^|]*\| (\d+)", lambda: f"{get_start_limit(NO_OPERATOR):.0f}"),
    ("docs/performance.md", r"`--max_delay_ms` (\d+), the default", lambda: f"{build_parser().get_default(DELAY):.0f}"),
    ("docs/evaluation.md", r"([\d,]+) draws", lambda: f"{read_default(compare_predictions, 'resamples'):,}"),
    ("docs/evaluation.md", r"central (\d+) %", lambda: f"{100 * read_default(compare_predictions, 'confidence'):.0f}"),
    ("docs/deployment.md", r"Unschedulable \| (\d+) s", lambda: f"{read_default(KServeBackend, UNSCHEDULABLE):.0f}"),
    ("docs/kserve.md", r"requests of ([\d.]+) CPU and (\d) GiB, limits of (\d) CPU and (\d) GiB", read_resources),
    ("docs/kserve.md", r"a deadline of (\w+) minutes", lambda: NUMERALS[read_startup_minutes()]),
    ("docs/kserve.md", r"for (\d+) s after SIGTERM \(`--drain_seconds`\)", lambda: read_flag("drain_seconds")),
    ("docs/kserve.md", r"within (\d+) s \(`--grace_period`\)", lambda: read_flag("grace_period")),
)


@pytest.mark.parametrize(("document", "pattern", "compute"), VALUES, ids=[value[1] for value in VALUES])
def test_documented_value_is_that_of_code(document: str, pattern: str, compute: Callable[[], Any]) -> None:
    found = re.findall(pattern, read_page(document))
    assert found, f"{document}: no text matches {pattern!r}"
    assert set(found) == {compute()}


# Document, heading of the first column, and the names that this column must have.
TABLES: tuple[tuple[str, str, Callable[[], set[str]]], ...] = (
    ("docs/install.md", "extra", lambda: {f"[{name}]" for name in list_extras() - DEVELOPMENT}),
    ("docs/pipelines.md", "pipeline", lambda: {folder.name for folder in list_pipelines()}),
    ("docs/job-kinds.md", "name", lambda: set(KINDS)),
)


@pytest.mark.parametrize(("document", "heading", "compute"), TABLES, ids=[table[1] for table in TABLES])
def test_documented_table_is_complete(document: str, heading: str, compute: Callable[[], set[str]]) -> None:
    assert list_names(document, heading) == compute()


def test_default_metrics_of_the_tasks() -> None:
    text = (ROOT / "docs/evaluation.md").read_text().partition("The default is ")[2].partition(". ")[0]
    found = dict(re.findall(r"`([\w@]+)`\s\((\w+)\)", text))
    assert found == {get_metric("", task).name: task for task in found.values()}
    assert set(found) <= set(METRICS)


def test_every_metric_and_data_set_is_named() -> None:
    for document, names in (("docs/evaluation.md", METRICS), ("docs/data.md", READERS)):
        text = (ROOT / document).read_text()
        assert [name for name in names if f"`{name.partition('@')[0]}" not in text] == []


def test_exit_codes() -> None:
    codes = {0, INTERRUPTED_EXIT_CODE, *(error.exit_code for error in (KfpMindSporeError, UserError, GateNotMetError))}
    assert {int(row[0]) for row in list_rows("docs/command-line.md", "code")} == codes


def test_components_page_has_every_component() -> None:
    """The site's page is generated from the READMEs."""
    from docs.hooks.reference import _build_components

    assert re.findall(r"^### (\w+)$", _build_components(), re.MULTILINE) == [
        folder.name for folder in list_components()
    ]


def test_defaults_of_definition() -> None:
    text = (ROOT / "docs/msjob.md").read_text().partition("\n- Defaults: ")[2].partition("\n- ")[0]
    found = {name: yaml.safe_load(value) for name, value in re.findall(r"`([\w.]+): (\w+)`", text)}
    assert found == read_crd_defaults()


def test_thresholds_of_templates(tmp_path: Path) -> None:
    from kfp_mindspore.cli.init import TEMPLATES, write_project

    found = {}
    for row in list_rows("docs/your-own-model.md", "template"):
        metric, value = re.search(r"`(\w+)` is at (?:least|most) ([\d.]+)", row[2]).groups()  # type: ignore[union-attr]
        found[row[0].partition("`")[2].partition("`")[0]] = (metric, float(value))
    expected = {}
    for template in TEMPLATES:
        write_project(tmp_path / template, template)
        text = (tmp_path / template / "pipeline.py").read_text()
        threshold = re.search(r"threshold: float = ([\d.]+)", text)
        assert threshold is not None
        expected[template] = (found[template][0], float(threshold[1]))
        assert found[template][0] in text or found[template][0] == "accuracy"
    assert found == expected


def test_figures_of_comparison() -> None:
    rows = json.loads((ROOT / "docs/benchmarks/serving.json").read_text())["raw"]["table"]
    measured = {row[1]: (row[2], row[4]) for row in rows if row[0] == "JSON, 1 image, 32 connections"}
    for server, rate, latency in list_rows("docs/comparison.md", "server"):
        name = server.strip("`").partition(",")[0]
        assert (rate, latency) == (f"{measured[name][0]:,.0f}", f"{measured[name][1]:.3g}"), server


def test_extras_of_pipelines() -> None:
    documented = {}
    for names, _, extras in list_rows("docs/pipelines.md", "pipeline"):
        documented |= {key: set(re.findall(r"`(\w+)`", extras)) for key in re.findall(r"`(\w+)`", names)}
    needed = {}
    for name in list_packaged():
        images = list_needed_extras(load_spec(name), {})
        needed[name] = {extra for extras in images.values() for extra in list_missing_extras(extras, DEFAULT_EXTRAS)}
    assert documented == needed


def test_fields_of_language_models_are_documented() -> None:
    page = "docs/language-models.md"
    taken = {name.partition(".")[0] for name in list_names(page, "field")}
    assert taken == CHAT_FIELDS | COMPLETION_FIELDS
    rows = [(set(re.findall(r"`([^`]+)`", row[0])), row[1]) for row in list_rows(page, "vLLM's field")]
    refused = [names for names, what in rows if what.startswith("refused")]
    assert set().union(*refused) == set(UNSUPPORTED_FIELDS)
    assert all(names.isdisjoint(taken) for names, _ in rows)
