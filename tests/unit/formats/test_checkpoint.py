from __future__ import annotations

import json
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfp_mindspore.errors import CorruptBundleError, NotFoundError, UserError
from kfp_mindspore.formats import checkpoint
from kfp_mindspore.formats.checkpoint import Checkpoint, NetworkSpec


def write(path: Path, epoch: int = 1, step: int = 10, **changes: Any) -> Path:
    arguments: dict[str, Any] = {
        "epoch": epoch,
        "step": step,
        "seed": 7,
        "network": NetworkSpec("package.module:Network", {"classes": 10}),
        "metrics": {"loss": 0.5},
        "training": {"epochs": 3},
        "mindspore_version": "2.9.0",
    }
    with checkpoint.write_checkpoint(path, **{**arguments, **changes}) as directory:
        for name in ("network.ckpt", "optimizer.ckpt"):
            (directory / name).write_bytes(f"{name} {epoch} {step}".encode())
            (directory / name).chmod(0o400)
    return path


def list_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write_half(path: Path) -> None:
    with checkpoint.write_checkpoint(path, epoch=2, step=20, seed=7, network=NetworkSpec("")) as directory:
        (directory / "network.ckpt").write_bytes(b"half")
        raise RuntimeError("halfway")


def test_round_trip(tmp_path: Path) -> None:
    found = Checkpoint.open(write(tmp_path / "final"))
    assert (found.epoch, found.step, found.seed) == (1, 10, 7)
    assert found.network == NetworkSpec("package.module:Network", {"classes": 10})
    assert found.metrics == {"loss": 0.5}
    assert found.training == {"epochs": 3}
    assert found.mindspore_version == "2.9.0"
    assert found.network_file.read_bytes() == b"network.ckpt 1 10"
    assert found.optimizer_file.is_file()


def test_file_modes_and_no_temporary_files(tmp_path: Path) -> None:
    path = write(tmp_path / "00001-10")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o644}
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert list_names(tmp_path) == ["00001-10"]


def test_failed_write_keeps_old_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path / "00001-10")
    with pytest.raises(RuntimeError, match="halfway"):
        write_half(path)
    assert Checkpoint.open(path).epoch == 1
    assert list_names(tmp_path) == ["00001-10"]


def test_unwritable_directory_is_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the checkpoint cannot be written \(.*[Nn]ot a directory|File exists"):
        write(tmp_path / "file" / "00001-10")


def truncate(path: Path) -> None:
    (path / "network.ckpt").write_bytes(b"net")


def flip(path: Path) -> None:
    (path / "optimizer.ckpt").write_bytes(b"Optimizer.ckpt 2 20")


def remove_file(path: Path) -> None:
    (path / "optimizer.ckpt").unlink()


def remove_description(path: Path) -> None:
    (path / "checkpoint.json").unlink()


def truncate_description(path: Path) -> None:
    (path / "checkpoint.json").write_text("{")


BREAKAGES = [
    (truncate, CorruptBundleError, "network.ckpt: must have"),
    (flip, CorruptBundleError, "optimizer.ckpt: sha256 must be"),
    (remove_file, UserError, "optimizer.ckpt missing, named by checkpoint.json"),
    (remove_description, NotFoundError, "checkpoint.json is missing"),
    (truncate_description, UserError, "checkpoint.json: not valid JSON"),
]


@pytest.mark.parametrize(("damage", "kind", "message"), BREAKAGES)
def test_broken_checkpoint_is_rejected_and_skipped_with_warning(
    damage: Callable[[Path], None],
    kind: type[Exception],
    message: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(tmp_path / "00001-10")
    newest = write(tmp_path / "00002-20", 2, 20)
    damage(newest)

    with pytest.raises(kind) as caught:
        Checkpoint.open(newest)
    assert message in str(caught.value)

    with caplog.at_level(logging.WARNING):
        found = checkpoint.get_latest_checkpoint(tmp_path)
    assert found is not None
    assert found.epoch == 1
    assert message in caplog.text
    assert str(newest) in caplog.text


@pytest.mark.parametrize("field", ["epoch", "step", "seed", "network", "metrics", "files", "mindspore_version"])
def test_error_names_missing_field(tmp_path: Path, field: str) -> None:
    path = write(tmp_path / "00001-10")
    description = json.loads((path / "checkpoint.json").read_text())
    del description[field]
    (path / "checkpoint.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match=f"field '{field}' is missing"):
        Checkpoint.open(path)


def test_open_without_verify_compares_sizes_only(tmp_path: Path) -> None:
    path = write(tmp_path / "00002-20", 2, 20)
    flip(path)
    assert Checkpoint.open(path, verify=False).step == 20


def test_no_latest_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.get_latest_checkpoint(tmp_path / "nowhere") is None
    (tmp_path / "other").mkdir()
    (tmp_path / ".00001-10.abc.tmp").mkdir()
    (tmp_path / "00001-10").touch()
    assert checkpoint.get_latest_checkpoint(tmp_path) is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), unique=True, max_size=6))
def test_checkpoints_are_ordered_by_number(tmp_path_factory: pytest.TempPathFactory, pairs: list[Any]) -> None:
    root = tmp_path_factory.mktemp("root")
    for epoch, step in pairs:
        (root / checkpoint.name_checkpoint(epoch, step)).mkdir()
    names = [path.name for path in checkpoint.list_checkpoints(root)]
    assert names == [checkpoint.name_checkpoint(*pair) for pair in sorted(pairs, reverse=True)]


def test_pruning_keeps_newest_and_other_directories(tmp_path: Path) -> None:
    for epoch in range(1, 5):
        write(tmp_path / checkpoint.name_checkpoint(epoch, epoch * 10), epoch, epoch * 10)
    write(tmp_path / "final")
    checkpoint.prune_checkpoints(tmp_path, 2)
    assert list_names(tmp_path) == ["00003-30", "00004-40", "final"]


def test_only_temporary_directories_of_killed_writers_are_removed(tmp_path: Path) -> None:
    write(tmp_path / "00001-10")
    for name in (".00002-20.a1b2.tmp", ".00001-10.x.old", ".mine.tmp", "notes"):
        (tmp_path / name).mkdir()
    checkpoint.remove_leftovers(tmp_path)
    assert list_names(tmp_path) == [".mine.tmp", "00001-10", "notes"]
    checkpoint.remove_leftovers(tmp_path / "nowhere")


def test_network_of_moved_module_is_resolved(tmp_path: Path) -> None:
    write(tmp_path / "00001-000001", network=NetworkSpec("kfp_mindspore.digits.network:LeNet5", {}))
    opened = Checkpoint.open(tmp_path / "00001-000001")
    assert opened.network.factory == "kfp_mindspore.workloads.digits.network:LeNet5"
