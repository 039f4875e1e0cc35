"""Missing modules in a step: one line that names the extra."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kfp_mindspore
from kfp_mindspore.steps.missing_modules import explain_missing, list_extras

ROOT = Path(kfp_mindspore.__file__).parent
# This package; PyYAML, which is required always; and what type checkers have of their own.
OWN = {"kfp_mindspore", "mindsporeserver", "typing_extensions", "yaml"}
# Requirements of the extras' own requirements.
TRANSITIVE = {"botocore", "kfp_server_api", "mr_openapi", "scipy", "urllib3", "yarl"}
STEP = """
import sys
sys.modules["tokenizers"] = None
import kfp_mindspore.steps
{statement}
"""


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("import tokenizers", "lm"),
        ("raise ModuleNotFoundError(name='optuna.storages')", "sweeps"),
        ("raise ModuleNotFoundError(name='PIL')", "train"),
    ],
)
def test_step_prints_one_line_with_extra_and_build_command(statement: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEP.format(statement=statement)],
        env={**os.environ, "_KFP_RUNTIME": "true", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.match(r"MissingExtraError: \w+ is not installed\. Build the image of this pod", line)
    assert f"kfp-mindspore image runtime --extra {extra} " in line


def test_module_of_no_extra_is_not_explained() -> None:
    assert explain_missing(ModuleNotFoundError(name="my_module")) is None
    assert explain_missing(ModuleNotFoundError()) is None
    assert list_extras("numpy") == []


@pytest.mark.parametrize(
    ("importer", "extra"), [("kfp_mindspore.ray.data", "ray"), ("kfp_mindspore.data.fetch", "data")]
)
def test_extra_is_that_of_the_importing_package(importer: str, extra: str) -> None:
    assert list_extras("pyarrow") == ["data", "ray"]
    with pytest.raises(ModuleNotFoundError) as caught:
        exec("raise ModuleNotFoundError(name='pyarrow.csv')", {"__name__": importer})
    found = explain_missing(caught.value)
    assert found is not None
    assert f"kfp-mindspore[{extra}]" in found.hint


def test_each_imported_module_belongs_to_an_extra() -> None:
    required = {re.split(r"[ ;<>=\[]", text)[0] for text in importlib.metadata.requires("kfp-mindspore") or ()}
    known = {name.lower().replace("_", "-") for name in required}
    imports = re.compile(r"^ *(?:import|from) (\w+)[\w.]*(?: import .*)?$", re.MULTILINE)
    modules: set[str] = set()
    for file in [*ROOT.rglob("*.py"), *ROOT.parent.glob("serving/mindsporeserver/**/*.py")]:
        if "tests" not in file.parts:
            modules.update(imports.findall(file.read_text()))
    assert len(modules) > 60
    foreign = modules - OWN - TRANSITIVE - set(sys.stdlib_module_names)
    assert [name for name in foreign if name.lower().replace("_", "-") not in known and not list_extras(name)] == []
