"""Compiled components and pipelines under other versions of kfp, recorded in docs/support.json.

python -m tests.support.kfp_versions
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.support_matrix import record

VERSIONS = ("2.17.3", "2.16.1", "2.15.2", "2.14.6")
_ROOT = Path(__file__).parents[2]
_READER = Path(__file__).parent / "kfp_documents.py"


def measure(version: str) -> dict[str, str]:
    """Load every compiled file by one version of kfp and its specification, and return the results by kind."""
    # Unpinned, the specification is the newest, with fields that the back end of that version lacks.
    packages = [f"--with={name}=={version}" for name in ("kfp", "kfp-pipeline-spec")]
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "run", "--quiet", "--no-project", "--isolated", f"--python={sys.executable}", *packages]
    done = subprocess.run([*command, "python", _READER, _ROOT], stdout=subprocess.PIPE, check=True)
    cells: dict[str, str] = json.loads(done.stdout)
    return cells


if __name__ == "__main__":
    for version in VERSIONS:
        record("pipelines", version, measure(version))
