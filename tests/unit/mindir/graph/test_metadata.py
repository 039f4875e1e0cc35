"""Metadata of MindIR files, without MindSpore."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.formats.bundle import TensorSpec
from kfp_mindspore.mindir.graph.metadata import inspect_mindir


def test_metadata_of_real_models(models: Path) -> None:
    info = inspect_mindir(models / "free")
    assert info == inspect_mindir(models / "free" / "model.mindir")
    assert (info.producer, info.mindspore_version[:2]) == ("MindSpore", "2.")
    assert info.inputs == (TensorSpec("image", "float32", (-1, 1, 8, 8)),)
    assert [(spec.dtype, spec.shape) for spec in info.outputs] == [("float32", (-1, 10))]
    assert (info.parameters, info.parameter_values) == (2, 650)
    assert info.operators["MatMul"] == 1
    assert info.size == info.path.stat().st_size
    assert json.loads(json.dumps(info.to_dict()))["operators"] == info.operators
    assert inspect_mindir(models / "fixed").inputs[0].shape == (8, 1, 8, 8)
    assert inspect_mindir(models / "pair").inputs == (
        TensorSpec("values", "float32", (-1, 3)),
        TensorSpec("index", "int32", (-1,)),
    )


def test_mindspore_is_not_imported(models: Path) -> None:
    script = (
        "import sys; from kfp_mindspore.mindir.graph.metadata import inspect_mindir; inspect_mindir(sys.argv[1]);"
        "print([name for name in ('mindspore', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(models / "free")], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.parametrize("content", [b"", b"not a model at all", bytes(range(256)), b"\x0a\x031.1"])
def test_other_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.mindir"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"model.mindir: not a MindIR file"):
        inspect_mindir(file)


def test_error_names_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"model.mindir: no such file"):
        inspect_mindir(tmp_path)
