"""Stamps of CI's parts: which changes run a part again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.ci_stamps import compute_digest, get_commands, list_files, list_inputs, list_roots

COMMAND = "env/bin/python -m pytest --durations 10 -m docker tests/docker"
FILES = {
    "pyproject.toml": 'testpaths = ["components", "tests"]\n',
    "constraints.txt": "numpy==1.26.4\n",
    "README.md": "",
    "docs/start.md": "",
    "conftest.py": 'pytest_plugins = ["kfp_mindspore.testing"]\n',
    "kfp_mindspore/__init__.py": "",
    "kfp_mindspore/testing.py": 'PAGE = "start.md"\n',
    "kfp_mindspore/images/__init__.py": "import lazy_loader\n",
    "kfp_mindspore/images/__init__.pyi": "from .build import build_image as build_image\n",
    "kfp_mindspore/images/build.py": "def build_image() -> None:\n    from ..local import run\n",
    "kfp_mindspore/local/__init__.py": "",
    "kfp_mindspore/local/run.py": 'import importlib\nimportlib.import_module(f"kfp_mindspore.steps.{0}")\n',
    "kfp_mindspore/steps/load.py": 'COMMAND = "python -m mindsporeserver --port=1"\n',
    "kfp_mindspore/other.py": "",
    "kfp_mindspore_cli.py": "import kfp_mindspore.cli\n",
    "kfp_mindspore/cli/__init__.py": "",
    "serving/mindsporeserver/__init__.py": "",
    "serving/mindsporeserver/__main__.py": "",
    "components/load/component.py": "",
    "components/load/tests/test_component.py": "",
    "tests/docker/test_image.py": (
        'from kfp_mindspore.images import build_image\nimport components.load.component\n"support/script.py", "fake"\n'
    ),
    "tests/docker/conftest.py": 'subprocess.run(["kfp-mindspore", "image"])\n',
    "tests/support/script.py": "",
    "tests/support/fake/s3fs.py": "",
    "tests/unit/test_other.py": "",
}


def compute(changes: dict[str, str] | None = None, command: str = COMMAND) -> str:
    return compute_digest(command, {name: text.encode() for name, text in {**FILES, **(changes or {})}.items()})


@pytest.mark.parametrize("name", sorted(set(FILES) - {"pyproject.toml"}))
def test_change_of_input_alone_invalidates_stamp(name: str) -> None:
    others = {
        "README.md", "components/load/tests/test_component.py", "kfp_mindspore/other.py", "tests/unit/test_other.py"
    }  # fmt: skip
    assert (compute({name: FILES[name] + "\n"}) == compute()) is (name in others)


def test_other_command_or_variable_is_another_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compute()
    assert compute(command=f"{COMMAND} --exitfirst") != before
    monkeypatch.setenv("KFP_MINDSPORE_REQUIRE_DOCKER", "another")
    assert compute() != before


def test_default_paths_without_ignored_folders_are_roots() -> None:
    files = {name: text.encode() for name, text in FILES.items()}
    roots = list_roots("python -m pytest --ignore=tests/docker -m slow", files)
    assert roots == {name for name in FILES if re.match(r"(components|tests)/(?!docker).*py|conftest", name)}
    assert "tests/unit/test_other.py" in list_inputs("ruff check .", files)


def test_each_file_belongs_to_a_part_of_ci() -> None:
    files = list_files()
    run = (Path(__file__).parents[2] / ".ci" / "run").read_text()
    parts = re.findall(r'"make (test[\w-]*)"', run.partition("make install")[2])
    assert {"test", "test-slow", "test-ray", "test-docker", "test-workloads", "test-cluster"} == set(parts)
    roots = {name for part in set(parts) for name in list_roots(get_commands(["make", part]), files)}
    assert roots == {name for name in files if name.endswith((".py", ".pyi"))}


@pytest.mark.slow
def test_pod_entry_points_belong_to_tests_on_kubernetes() -> None:
    inputs = list_inputs(get_commands(["make", "test-cluster"]), list_files())
    assert {
        "constraints.txt", "serving/Containerfile", "serving/mindsporeserver/main.py",
        "kfp_mindspore/cli/main.py", "kfp_mindspore/podside/launchers.py",
        "kfp_mindspore/operator/decisions/reconcile.py",
    } <= inputs  # fmt: skip
    assert not any(name.startswith("tests/faults/test_") for name in inputs)
