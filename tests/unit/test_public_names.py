"""The public interface: names of the packages, imported on first use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import kfp_mindspore

ROOT = Path(kfp_mindspore.__file__).parent
# A stub declares a package's public names; packages without one have none.
PACKAGES = ("kfp_mindspore", *(f"kfp_mindspore.{file.parent.name}" for file in sorted(ROOT.glob("*/__init__.pyi"))))
# Packages that may repeat names: kfp_mindspore exports names of the other packages, a component is the KFP form of the
# function of the same name, and a pipeline may be called as its main component.
REPEATING = ("kfp_mindspore", "kfp_mindspore.components", "kfp_mindspore.pipelines")
MAXIMUM_NAMES = 97
# On Ray, the same function returns Ray's datasets.
REPEATED = ["load_dataset"]


@pytest.mark.parametrize("package", PACKAGES)
def test_package_lists_and_resolves_its_public_names(package) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018


def test_front_door_offers_usual_names() -> None:
    assert dir(importlib.import_module("kfp_mindspore")) == [
        "InferenceClient",
        "MSJobClient",
        "TrainingConfig",
        "build_image",
        "export_mindir",
        "fit",
        "load_dataset",
        "msjob_component",
        "run_local",
    ]


def test_public_names_are_few_and_unique() -> None:
    names = [
        name for package in PACKAGES if package not in REPEATING for name in importlib.import_module(package).__all__
    ]
    assert len(names) <= MAXIMUM_NAMES
    assert sorted(names) == sorted([*{*names}, *REPEATED])


def test_packages_without_stub_export_no_names() -> None:
    files = [file for file in ROOT.glob("*/__init__.py") if not file.with_suffix(".pyi").exists()]
    assert not [file.parent.name for file in files if "__all__" in file.read_text()]


@pytest.mark.parametrize(
    "first",
    ["kfp_mindspore.components", "kfp_mindspore.components.training.train_msjob.component"],
)
def test_component_is_importable_by_name_in_any_order(first) -> None:
    program = (
        "from kfp_mindspore.compat.lazy_kfp import import_kfp; import_kfp(); "
        f"import {first}; from kfp_mindspore.components import train_msjob; "
        "import kfp_mindspore.components.training.train_msjob.component as module; "
        "from kfp_mindspore.components import train_msjob as again; assert again is train_msjob is module.train_msjob"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_import_takes_less_than_tenth_of_second() -> None:
    program = "import time; start = time.process_time(); import kfp_mindspore; print(time.process_time() - start)"
    seconds = [
        float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout) for _ in range(5)
    ]
    assert min(seconds) < 0.1
