from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
from kfp_mindspore.compat.lazy_kfp import import_kfp
import_kfp()
import_kfp()
import kfp
assert "_KFP_RUNTIME" not in os.environ
assert "kubernetes" not in sys.modules
assert not hasattr(kfp, "nothing")
from kfp import compiler, components, dsl, local
assert dsl.pipeline and dsl.component and dsl.If
assert "kubernetes" not in sys.modules
from kfp import Client, client
assert client.Client is Client
assert "kubernetes" in sys.modules
"""


def test_client_is_imported_on_first_use() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_missing_kfp_names_extra() -> None:
    code = (
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod(lambda name, *a: "
        "(_ for _ in ()).throw(ModuleNotFoundError(name, name=name)) if name == 'kfp' else None)})())\n"
        "from kfp_mindspore.cli.main import run\n"
        "from kfp_mindspore.compat.lazy_kfp import import_kfp\nimport_kfp()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'kfp-mindspore[pipelines]'" in done.stderr


def test_ipython_is_skipped() -> None:
    """If the last line fails, kfp.Client no longer imports IPython: delete skip_ipython."""
    program = (
        "import sys\nfrom kfp_mindspore.compat.lazy_kfp import skip_ipython\nfrom kfp.client import auth\n"
        "with skip_ipython():\n    assert not auth.is_ipython()\n"
        "assert 'IPython' not in sys.modules\nauth.is_ipython()\nassert 'IPython' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_patch_is_still_needed() -> None:
    """If this fails, `import kfp` no longer imports its API client: delete lazy_kfp."""
    program = "import sys, kfp; assert 'kubernetes' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
