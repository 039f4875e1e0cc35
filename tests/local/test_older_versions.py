"""What released versions stored on this machine: read, served and resumed by this one; tests/fixtures has it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.inference import InferenceClient, KServeBackend
from kfp_mindspore.inference.runtime import build_serving_runtime
from kfp_mindspore.inference.service import LANGUAGE_FORMAT, MODEL_FORMAT
from kfp_mindspore.kube.resources import Resource
from tests.fixtures import CODE, EXPECTED, FOLDER, list_versions, matches, name_paths, unpack
from tests.fixtures.reading import read
from tests.fixtures.resuming import resume_run, resume_trials
from tests.fixtures.serving import serve
from tests.support.kube.fake_api_server import FakeApiServer

VERSIONS = list_versions()


def read_expected(version: str, part: str) -> Any:
    """Return what a version itself found."""
    return json.loads((FOLDER / version / EXPECTED).read_text())[part]


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(version: str, isolated_home: Path) -> Path:
    """A copy of a version's fixtures."""
    return unpack(version, isolated_home / "stored")


def test_first_release_is_stored() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("part", ["jobs", "services", "runs", "sweep", "dataset", "checkpoints", "bundles", "metrics"])
def test_stored_state_is_read(root: Path, version: str, part: str) -> None:
    found = json.loads(name_paths(json.dumps(read(root)[part]), root))
    expected = read_expected(version, "reading")[part]
    assert expected
    assert matches(found, expected), (found, expected)


def test_killed_job_without_supervisor_is_failed(root: Path) -> None:
    status = json.loads((root / "home/jobs/default/lost/status.json").read_text())
    assert [item["type"] for item in status["status"]["conditions"] if item["status"] == "True"][-1] == "Running"
    assert read(root)["jobs"]["lost"]["conditions"]["Failed"] == "SupervisorLost"


def test_interrupted_sweep_is_resumed(root: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "project")
    assert matches(resume_trials(root), read_expected(version, "resuming")["sweep"])


@pytest.mark.slow
def test_failed_run_is_resumed(root: Path, version: str) -> None:
    assert matches(resume_run(root), read_expected(version, "resuming")["run"])


@pytest.mark.slow
@pytest.mark.mindspore
def test_stored_services_respond_as_before(root: Path, version: str) -> None:
    found, expected = serve(root), read_expected(version, "serving")
    for name, responses in expected.items():
        assert matches(found[name], responses), (found[name], responses)


@pytest.mark.slow
@pytest.mark.mindspore
def test_stored_training_is_resumed_and_checkpoints_are_exported(
    root: Path, version: str, mindspore_processes: Any
) -> None:
    script = CODE / "tests/fixtures/replaying.py"
    code, output = mindspore_processes.run([script, root], root / "project")
    assert code == 0, output
    found, expected = json.loads(output.splitlines()[-1]), read_expected(version, "replaying")
    assert matches(found, expected), (found, expected)


def read_items(root: Path, name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads((root / "cluster" / f"{name}.json").read_text())["items"]
    return items


def get_collection(item: dict[str, Any]) -> str:
    group, _, version = item["apiVersion"].rpartition("/")
    resource = Resource(group, version, f"{item['kind'].lower()}s", item["kind"])
    return resource.get_path(item["metadata"]["namespace"])


def test_services_of_kserve_are_read(root: Path, api: FakeApiServer, tmp_path: Path) -> None:
    for item in read_items(root, "services"):
        api.put(get_collection(item), item)
    client = InferenceClient(KServeBackend(kubeconfig=api.write_kubeconfig(tmp_path / "kubeconfig")), "team-a")
    (status,) = client.list()
    assert (status.name, status.version, status.state.value) == ("digits", 2, "Ready")
    assert (status.model, status.digest, status.run) == ("s3://models/second/", "sha256:second", "run-1")
    assert status.previous == "s3://models/first/"
    assert status.canary is not None
    assert (status.canary.percent, status.canary.model) == (20, "s3://models/third/")


def test_services_find_runtimes_of_both_versions(root: Path) -> None:
    def select(runtime: dict[str, Any]) -> tuple[Any, ...]:
        formats = tuple((item["name"], item["autoSelect"]) for item in runtime["spec"]["supportedModelFormats"])
        return runtime["kind"], runtime["metadata"]["name"], formats, tuple(runtime["spec"]["protocolVersions"])

    present = [
        build_serving_runtime("registry.example.com/server:2", namespace=namespace, model_format=model_format)
        for namespace in (None, "team-a")
        for model_format in (MODEL_FORMAT, LANGUAGE_FORMAT)
    ]
    assert [*map(select, read_items(root, "runtimes"))] == [*map(select, present)]


@pytest.fixture
def make() -> Callable[[str], subprocess.CompletedProcess[str]]:
    """A function that starts `make fixtures` for a version."""

    def start(version: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.fixtures", version]
        return subprocess.run(command, cwd=CODE, capture_output=True, text=True, timeout=60, check=False)

    return start


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("0.1.0", "0.1.0: has fixtures already; remove tests/fixtures/0.1.0 if it is not released yet"),
        ("9.0.0", "VERSION: must be the package's, "),
        ("", "VERSION: must be the package's, "),
    ],
)
def test_fixtures_are_written_for_present_version_once(
    make: Callable[[str], subprocess.CompletedProcess[str]], asked: str, message: str
) -> None:
    done = make(asked)
    assert done.returncode == 1
    assert done.stderr.startswith(message)
