from __future__ import annotations

import subprocess
import sys

import pytest

_IMPORT = """
import sys
sys.modules[sys.argv[1]] = None
from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.images import collect_folder
try:
    exec(sys.argv[2])
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("library", "statement"),
    [
        ("docker", "from kfp_mindspore.images import AppendBuilder"),
        ("requests", "from kfp_mindspore.images.build import make_plan"),
    ],
)
def test_missing_extra_is_named(library: str, statement: str) -> None:
    words = [sys.executable, "-c", _IMPORT, library, statement]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"{library} is not installed\nInstall it with: pip install 'kfp-mindspore[images]'")


def test_import_loads_no_extra() -> None:
    command = "import sys, kfp_mindspore.images as i; i.collect_folder; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert not {"requests", "docker", "IPython", "nbformat", "kubernetes"} & set(done.stdout.split())
