from __future__ import annotations

import subprocess
import sys

import pytest

CASES = {
    "the client is imported on first use": (
        "import os, sys, kfp; assert '_KFP_RUNTIME' not in os.environ; assert 'kubernetes' not in sys.modules; "
        "assert kfp.Client.__name__ == 'Client'; assert 'kubernetes' in sys.modules"
    ),
    "public names can be imported": (
        "from kfp import Client, client, compiler, components, dsl, local; "
        "assert client.Client is Client; assert dsl.pipeline and dsl.component and dsl.If"
    ),
    "an unknown attribute is an AttributeError": "import kfp; assert not hasattr(kfp, 'nothing')",
}


@pytest.mark.parametrize("code", list(CASES.values()), ids=list(CASES))
def test_kfp_is_complete(code: str) -> None:
    prologue = "from kfp_mindspore.compat.lazy_kfp import import_kfp; import_kfp(); import_kfp()\n"
    done = subprocess.run([sys.executable, "-c", prologue + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_kfp_names_the_extra() -> None:
    code = (
        "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod(lambda name, *a: "
        "(_ for _ in ()).throw(ModuleNotFoundError(name, name=name)) if name == 'kfp' else None)})())\n"
        "from kfp_mindspore.cli.main import run\n"
        "from kfp_mindspore.compat.lazy_kfp import import_kfp\nimport_kfp()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'kfp-mindspore[pipelines]'" in done.stderr


def test_patch_is_still_needed() -> None:
    """If this fails, `import kfp` no longer imports its API client: delete lazy_kfp."""
    program = "import sys, kfp; assert 'kubernetes' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
