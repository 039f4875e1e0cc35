"""Standard streams of this package's processes under an ASCII locale."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kfp_mindspore

ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "LANG": "C"}


@pytest.mark.parametrize("variables", [ASCII, {**ASCII, "PYTHONIOENCODING": ""}], ids=["encoding", "locale"])
def test_text_that_encoding_lacks_is_escaped(variables: dict[str, str]) -> None:
    code = r"import sys, kfp_mindspore; print('a\u2026b'); print('c\u2192d', file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"a\\u2026b\n", b"c\\u2192d\n")


def test_other_encodings_are_kept() -> None:
    code = "import sys, kfp_mindspore; print('a…b', sys.stdout.errors)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == "a…b strict\n"


def test_each_entry_point_imports_the_package() -> None:
    root = Path(kfp_mindspore.__file__).parent
    entries = [file for file in root.parent.glob("serving/**/*.py") if "__main__" in file.read_text()]
    assert entries
    # Those of kfp_mindspore import it as their parent.
    assert [file for file in entries if "from kfp_mindspore" not in file.read_text()] == []
