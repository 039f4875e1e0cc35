"""The public interface: names of the packages, imported on first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = (
    "kfp_mindspore",
    "kfp_mindspore.components",
    "kfp_mindspore.data",
    "kfp_mindspore.dsl",
    "kfp_mindspore.evaluation",
    "kfp_mindspore.images",
    "kfp_mindspore.inference",
    "kfp_mindspore.mindir",
    "kfp_mindspore.msjob",
    "kfp_mindspore.runs",
    "kfp_mindspore.training",
    "kfp_mindspore.transform",
)
MAXIMUM_NAMES = 123
# Packages that may repeat names: kfp_mindspore exports names of the other packages, and a component is the KFP form of
# the function of the same name.
REPEATING = ("kfp_mindspore", "kfp_mindspore.components")


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
    names = {package: importlib.import_module(package).__all__ for package in PACKAGES if package != "kfp_mindspore"}
    assert sum(map(len, names.values())) <= MAXIMUM_NAMES
    unique = [name for package, exported in names.items() if package not in REPEATING for name in exported]
    assert len(unique) == len(set(unique))


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
