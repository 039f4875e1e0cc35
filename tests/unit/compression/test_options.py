"""Compression options: each wrong value is refused by its name, before anything is read or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.cli.main import run
from kfp_mindspore.compression import compress
from kfp_mindspore.compression.options import METHODS, TARGETS, WEIGHTS, CompressionOptions
from kfp_mindspore.errors import UserError, ValidationError

WRONG: list[tuple[str, Any, str]] = [
    ("method", "magic", "must be one of"),
    ("target", "bytes", "must be one of"),
    ("weights", "int4", "must be one of"),
    ("pruned", 1.0, "< 1"),
    ("pruned", -0.1, "≥ 0"),
    ("min_pruned", 1.0, "< 1"),
    ("max_accuracy_lost", -0.01, "≥ 0"),
    ("rounds", 0, "≥ 1"),
    ("epochs", 0, "≥ 1"),
    ("batch_size", 0, "≥ 1"),
    ("learning_rate", 0.0, "> 0"),
    ("distillation", 1.5, "≤ 1"),
    ("temperature", 0.0, "> 0"),
    ("seed", -1, "≥ 0"),
]


@pytest.mark.parametrize(("name", "value", "text"), WRONG)
def test_wrong_value_is_refused_by_name(name: str, value: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        CompressionOptions(**{name: value})

    assert f"{name}: " in str(caught.value)
    assert text in str(caught.value)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(("name", "value", "text"), WRONG)
def test_wrong_option_exits_with_2_and_writes_nothing(
    name: str, value: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model", "compress", str(tmp_path / "c"), "--dataset", str(tmp_path / "d"), "-o", str(tmp_path / "o")]

    assert run([*words, f"--{name.replace('_', '-')}", str(value)]) == 2

    errors = capsys.readouterr().err
    assert name in errors.replace("-", "_")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_several_wrong_values_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        CompressionOptions(method="magic", epochs=0)

    assert all(f"{name}: " in str(caught.value) for name in ("method", "epochs"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", TARGETS)
def test_methods_and_targets_are_known(method: str, target: str) -> None:
    found = CompressionOptions(method=method, target=target)
    assert (found.method, found.target) == (method, target)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_cutting_nothing_is_for_packed_weights_only(weights: str) -> None:
    if weights == "float32":
        with pytest.raises(ValidationError, match="pruned: must be above 0 unless weights are packed"):
            CompressionOptions(pruned=0, min_pruned=0)
    else:
        assert CompressionOptions(pruned=0, min_pruned=0, weights=weights).pruned == 0


def test_keyword_changes_are_checked_before_the_checkpoint_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="epochs: "):
        compress(tmp_path / "none", tmp_path / "none", tmp_path / "out", epochs=0)


def test_missing_dataset_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-data"):
        compress(tmp_path / "none", tmp_path / "no-such-data", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["checkpoint", "data"])
def test_output_does_not_replace_what_it_reads(place: str, tmp_path: Path) -> None:
    for name in ("checkpoint", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("kept")

    with pytest.raises(UserError, match=rf"{place}: is the input .*{place}, which would be changed or lost"):
        compress(tmp_path / "checkpoint", tmp_path / "data", tmp_path / place)
    assert (tmp_path / place / "file").read_text() == "kept"
