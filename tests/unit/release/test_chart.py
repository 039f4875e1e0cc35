"""The Helm chart's values; tests/cluster/test_chart.py renders its templates by Helm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kfp_mindspore.operator.install import InstallOptions, build_objects
from release.chart import NAME, render_chart

CHART = Path(__file__).parents[3] / "charts" / NAME


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json.loads(render_chart()["values.schema.json"])
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def test_values_are_the_defaults_of_operator_install(validator: Any) -> None:
    values = yaml.safe_load(render_chart()["values.yaml"])
    validator.validate(values)
    names = {"enabled", "image", "namespace", "watched", "gangScheduler", "istioSidecar", "podSecurity", "replicas"}
    assert values["operator"].keys() >= names
    defaults = InstallOptions()
    assert (values["operator"]["replicas"], values["operator"]["image"]) == (defaults.replicas, defaults.image)


@pytest.mark.parametrize(
    "values",
    [
        {"operator": {"replicas": "2"}},
        {"operator": {"replicas": 0}},
        {"operator": {"watched": "team-a"}},
        {"operator": {"gangScheduler": "other"}},
        {"operator": {"unknown": 1}},
        {"runtime": {"autoSelect": "no"}},
        {"pipelines": {"capabilities": [1]}},
        {"monitoring": {"labels": {"release": 1}}},
        {"monitoring": {"p99Seconds": 0}},
        {"other": {}},
    ],
)
def test_wrong_value_is_refused_by_schema(values: dict[str, Any], validator: Any) -> None:
    assert len(list(validator.iter_errors(values))) == 1


def test_definition_is_that_of_operator_install() -> None:
    link = CHART / "crd.yaml"
    assert link.is_symlink()
    assert yaml.safe_load(link.read_text()) == build_objects(InstallOptions())[0]
    # The template adds an annotation to the only line of this form.
    assert link.read_text().count("\nmetadata:\n") == 1
    assert "annotations" not in build_objects(InstallOptions())[0]["metadata"]
