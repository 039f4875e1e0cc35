from __future__ import annotations

import re
from pathlib import Path

import pytest

from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors, list_service_name_errors

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "namespace", "subdomain", "service"),
    [
        ("team-a", True, True, True),
        ("7", True, True, False),
        ("a.b-c.d", False, True, False),
        ("a" * 63, True, True, False),
        ("a" * 64, False, True, False),
        ("a." * 126 + "a", False, True, False),
        ("a." * 127 + "a", False, False, False),
        ("a..b", False, False, False),
        ("a.-b", False, False, False),
        ("-a", False, False, False),
        ("a-", False, False, False),
        ("A", False, False, False),
        ("a\n", False, False, False),
        ("", False, False, False),
        (None, False, False, False),
    ],
)
def test_names_follow_kubernetes_rules(name: object, namespace: bool, subdomain: bool, service: bool) -> None:
    assert (
        not list_namespace_errors("namespace", name),
        not list_name_errors("name", name),
        not list_service_name_errors("name", name, 53),
    ) == (namespace, subdomain, service)


def test_errors_have_field_rule_and_value() -> None:
    assert list_namespace_errors("--namespace", "ok", "Team") == [
        "--namespace: must be at most 63 lower-case letters, digits and '-', got 'Team'"
    ]


def test_no_other_module_has_pattern_of_dns_names() -> None:
    pattern = re.compile(r"\[-a-z0-9\]|\[a-z0-9-\]|\[-\.a-z0-9\]|\[a-z0-9\.-\]")
    folders = ("kfp_mindspore", "components", "pipelines", "serving/mindsporeserver")
    files = {file.resolve() for folder in folders for file in (ROOT / folder).rglob("*.py")}
    assert {file.relative_to(ROOT).as_posix() for file in files if pattern.search(file.read_text())} == {
        "kfp_mindspore/kube/names.py"
    }
