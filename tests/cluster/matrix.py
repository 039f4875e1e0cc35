"""Tests of API servers without nodes on each Kubernetes version, recorded in docs/support.json: `make test-matrix`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from tests.cluster.infrastructure.binaries import build_binaries
from tests.cluster.infrastructure.kubernetes_versions import VERSION_VARIABLE, lock_toolset
from tests.cluster.infrastructure.paths import ROOT
from tests.support.support_matrix import record

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "install": ("test_api_server.py::test_server_has_selected_version", "test_operator_install.py"),
    "validation": ("test_crd.py", "test_invalid_manifests.py"),
    "jobs": ("test_operator_jobs.py",),
    "operator": ("test_operator_process.py",),
}


def measure(version: str) -> bool:
    """Build a Kubernetes version, run the tests on it, record the results and return whether all passed."""
    build_binaries()
    build_binaries(lock_toolset(version))
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "junit.xml")
        files = [f"tests/cluster/{name}" for names in COLUMNS.values() for name in names]
        command = [sys.executable, "-m", "pytest", "-m", "cluster", "--junit-xml", str(report)]
        command += ["--numprocesses", "2", "--dist", "loadgroup", "--no-loadscope-reorder", *files]
        variables = {
            VERSION_VARIABLE: version,
            "KFP_MINDSPORE_TEST_CLUSTER": "own",
            "KFP_MINDSPORE_REQUIRE_CLUSTER": "1",
        }
        subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False)
        cells = read_cells(ElementTree.parse(report).getroot().iter("testcase"))
    record("kubernetes", version, cells)
    return set(cells.values()) == {"passed"}


def read_cells(cases: Iterable[ElementTree.Element]) -> dict[str, str]:
    """Return the result of each column's tests in a JUnit file; one without any passed test failed."""
    passed, failed = set[str](), set[str]()
    for case in cases:
        outcomes = {child.tag for child in case} & {"error", "failure", "skipped"}
        module = case.get("classname", "").rpartition(".")[2]
        (failed if outcomes & {"error", "failure"} else set() if outcomes else passed).add(module)
    cells = {}
    for column, names in COLUMNS.items():
        modules = {name.partition(".")[0] for name in names}
        cells[column] = "passed" if modules <= passed and not modules & failed else "failed"
    return cells
