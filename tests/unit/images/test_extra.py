from __future__ import annotations

import subprocess
import sys

import pytest

_IMPORT = """
import sys
sys.modules[sys.argv[1]] = None
from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.images import BuildContext, RegistryConfig, collect_folder
try:
    from kfp_mindspore.images import AppendBuilder
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize("library", ["dxf", "requests", "www_authenticate"])
def test_names_the_extra_that_is_missing(library: str) -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORT, library], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"{library} is not installed\nInstall it with: pip install 'kfp-mindspore[images]'")


def test_sources_need_no_extra_and_little_time() -> None:
    command = "import sys, kfp_mindspore.images as i; i.collect_folder; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert not {"dxf", "requests", "docker", "IPython", "nbformat", "kubernetes"} & set(done.stdout.split())
