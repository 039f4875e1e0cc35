"""docs/support.md shows what docs/support.json has recorded, and no column passes by tests that did not run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cluster.infrastructure.kubernetes_versions import derive_module
from tests.cluster.matrix import read_cells
from tests.support import support_matrix
from tests.support.support_matrix import PAGE, format_table, read_record, record, update_page


def test_page_shows_recorded_versions() -> None:
    sections = read_record()
    assert update_page(PAGE.read_text(), sections) == PAGE.read_text(), "run make test-matrix; see tests/support"


def test_new_measurement_replaces_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_matrix, "RECORD", tmp_path / "support.json")
    monkeypatch.setattr(support_matrix, "PAGE", tmp_path / "support.md")
    (tmp_path / "support.json").write_text('{"kubernetes": []}')
    (tmp_path / "support.md").write_text("before\n<!-- kubernetes -->\n<!-- end of kubernetes -->\nafter\n")
    record("kubernetes", "1.9.0", {"install": "failed", "jobs": "passed"})
    record("kubernetes", "1.10.2", {"install": "passed"})
    record("kubernetes", "1.9.0", {"install": "passed", "jobs": "passed"})
    rows = read_record()["kubernetes"]
    assert [(row["version"], row["install"], row.get("jobs")) for row in rows] == [
        ("1.10.2", "passed", None),
        ("1.9.0", "passed", "passed"),
    ]
    page = (tmp_path / "support.md").read_text()
    assert page.startswith(f"before\n<!-- kubernetes -->\n{format_table(rows)}<!-- end of kubernetes -->\nafter\n")
    assert f"| 1.10.2 | passed | not run | {rows[0]['date']} |" in page


@pytest.mark.parametrize(
    ("outcomes", "jobs"),
    [
        (["", ""], "passed"),
        (["", "skipped"], "passed"),
        (["", "failure"], "failed"),
        (["", "error"], "failed"),
        (["skipped"], "failed"),
        ([], "failed"),
    ],
)
def test_column_passes_when_its_tests_ran_without_failure(outcomes: list[str], jobs: str) -> None:
    suite = ElementTree.Element("testsuite")
    for outcome in outcomes:
        case = ElementTree.SubElement(suite, "testcase", classname="tests.cluster.test_operator_jobs")
        ElementTree.SubElement(case, "properties")
        if outcome:
            ElementTree.SubElement(case, outcome)
    assert read_cells(suite)["jobs"] == jobs
    assert read_cells(suite)["operator"] == "failed"


def test_module_of_kubernetes_names_libraries_of_same_release() -> None:
    release = "module k8s.io/kubernetes\n\ngo 1.22.0\n\nrequire golang.org/x/net v0.38.0\n\n"
    release += "replace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    assert derive_module(release, "1.31.14").splitlines() == [
        "module kfp-mindspore.test/kubernetes",
        "go 1.22.0",
        "require k8s.io/kubernetes v1.31.14",
        "replace k8s.io/api => k8s.io/api v0.31.14",
    ]
