"""Files of predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from kfp_mindspore.data.rows import write_predictions
from kfp_mindspore.errors import UserError

COLUMNS = {"label": ["a", "b"], "output": [[0.25, 0.75], [0.5, 0.5]]}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_replace_earlier_ones_only(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"predictions{suffix}"
    write_predictions(path, COLUMNS)
    write_predictions(path, {name: values[:1] for name, values in COLUMNS.items()})
    before = path.read_bytes()
    with pytest.raises(UserError, match="expected a new one, or predictions with the same columns"):
        write_predictions(path, {**COLUMNS, "further": [1, 2]})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"precious", b"width,height\n1,2\n", b"\xff\xfe\x00", b"PAR1"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_replace_no_other_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"sales{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"sales.* is a file with other content"):
        write_predictions(path, COLUMNS)
    assert path.read_bytes() == content
