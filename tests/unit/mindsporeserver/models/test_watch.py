"""Models that are replaced, copied file by file, deleted, restored and switched by symbolic links."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from mindsporeserver.models import watch
from mindsporeserver.models.repository import Sources
from mindsporeserver.models.watch import ModelWatcher

FILES = ("model.mindir", "labels.txt", "signature.json")


def write_bundle(path: Path, content: str) -> Path:
    """Replace a directory by one that the watcher accepts as a bundle."""
    new = path.with_name(f".{path.name}.new")
    new.mkdir(parents=True)
    for name in FILES:
        (new / name).write_text(content)
    if path.exists():
        shutil.rmtree(path)
    new.rename(path)
    return path


class FakeRepository:
    """Records calls and raises the given failures."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.calls: list[str] = []
        self.failures: list[Exception] = []

    def __getattr__(self, name: str) -> Callable[[str], Any]:
        async def call(model: str) -> None:
            self.calls.append(f"{name} {model}")
            if self.failures:
                raise self.failures.pop(0)

        return call


class Watched:
    """A watcher of a fake repository."""

    def __init__(self, models: dict[str, Path] | None = None, repository: Path | None = None) -> None:
        self.repository: Any = FakeRepository(Sources(models or {}, repository, all_versions=True))
        self._watcher = ModelWatcher(self.repository, 1.0)

    def poll(self, times: int = 1) -> list[str]:
        """Poll and return the calls."""
        self.repository.calls.clear()
        for _ in range(times):
            asyncio.run(self._watcher.poll())
        return list(self.repository.calls)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "models" / "digits", "one")


def switch_link(link: Path, target: str) -> None:
    temporary = link.with_name("..tmp")
    temporary.symlink_to(target)
    temporary.replace(link)


def replace_bundle(path: Path) -> None:
    write_bundle(path, "two")


def replace_by_older_bundle(path: Path) -> None:
    old = write_bundle(path.with_name("old"), "two")
    for file in old.iterdir():
        os.utime(file, (1, 1))
    shutil.rmtree(path)
    old.rename(path)


def rewrite_model_file(path: Path) -> None:
    (path / "model.mindir").write_text("two")


@pytest.mark.parametrize("change", [replace_bundle, replace_by_older_bundle, rewrite_model_file])
def test_changed_model_is_reloaded_once_and_after_it_settled(bundle: Path, change: Callable[[Path], None]) -> None:
    watched = Watched({"digits": bundle})
    assert watched.poll(3) == []
    change(bundle)
    assert watched.poll() == []
    assert watched.poll() == ["reload digits"]
    assert watched.poll(3) == []


def test_model_is_not_reloaded_while_it_is_copied(bundle: Path) -> None:
    watched = Watched({"digits": bundle})
    for name in FILES:
        for content in ("t", "two"):
            (bundle / name).write_text(content)
            assert watched.poll() == []
    assert watched.poll(3) == ["reload digits"]


def test_deleted_model_directory_is_not_unloaded(bundle: Path) -> None:
    watched = Watched({"digits": bundle})
    shutil.rmtree(bundle)
    assert watched.poll(3) == []
    write_bundle(bundle, "two")
    assert watched.poll(3) in (["load digits"], ["reload digits"])


def test_link_to_bundle_is_switched(tmp_path: Path) -> None:
    for content in ("one", "two"):
        write_bundle(tmp_path / content, content)
    link = tmp_path / "digits"
    link.symlink_to("one")
    watched = Watched({"digits": link})
    switch_link(link, "two")
    assert watched.poll(3) == ["reload digits"]


def test_kubelet_switches_volume(tmp_path: Path) -> None:
    volume = tmp_path / "models"
    for content in ("..2026_one", "..2026_two"):
        write_bundle(volume / content, content)
    (volume / "..data").symlink_to("..2026_one")
    for name in FILES:
        (volume / name).symlink_to(f"..data/{name}")
    watched = Watched({"digits": volume})
    switch_link(volume / "..data", "..2026_two")
    assert watched.poll(3) == ["reload digits"]
    # The kubelet's own directories are no models of a repository.
    assert Watched(repository=volume).repository.sources.list_names() == []


def test_versions_appear_change_and_disappear(tmp_path: Path) -> None:
    model = tmp_path / "digits"
    write_bundle(model / "1", "one")
    watched = Watched({"digits": model})
    (model / "2").mkdir()
    (model / "notes").mkdir()
    assert watched.poll(3) == []
    shutil.rmtree(model / "2")
    for content in ("two", "six"):
        write_bundle(model / "2", content)
        assert watched.poll(3) == ["reload digits"]
    shutil.rmtree(model / "1")
    assert watched.poll(3) == ["reload digits"]
    shutil.rmtree(model / "2")
    assert watched.poll(3) == []


def test_models_of_repository_appear_and_disappear(tmp_path: Path) -> None:
    write_bundle(tmp_path / "digits", "one")
    watched = Watched(repository=tmp_path)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "README").write_text("no model")
    write_bundle(tmp_path / ".hidden", "one")
    assert watched.poll(3) == []
    write_bundle(tmp_path / "faces", "one")
    assert watched.poll(3) == ["load faces"]
    write_bundle(tmp_path / "faces", "two")
    assert watched.poll(3) == ["reload faces"]
    shutil.rmtree(tmp_path / "digits")
    assert watched.poll() == []
    assert watched.poll(3) == ["unload digits"]
    write_bundle(tmp_path / "digits", "one")
    assert watched.poll(3) == ["load digits"]


def test_model_missing_for_one_poll_is_not_unloaded(tmp_path: Path) -> None:
    model = write_bundle(tmp_path / "digits", "one")
    watched = Watched(repository=tmp_path)
    model.rename(tmp_path / ".away")
    assert watched.poll() == []
    (tmp_path / ".away").rename(model)
    assert watched.poll(3) == []


def test_unmounted_repository_keeps_its_models(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_bundle(repository / "digits", "one")
    watched = Watched(repository=repository)
    repository.rename(tmp_path / "away")
    assert watched.poll(4) == []
    (tmp_path / "away").rename(repository)
    assert watched.poll(3) == []


def test_invalid_bundle_is_not_retried_before_it_changes(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Watched({"digits": bundle})
    watched.repository.failures = [UserError("no graph")]
    write_bundle(bundle, "two")
    assert watched.poll(5) == ["reload digits"]
    assert "model digits: changed on disk and not loaded, the previous one is served: no graph" in caplog.text
    write_bundle(bundle, "six")
    assert watched.poll(3) == ["reload digits"]


def test_removed_model_that_was_not_loaded_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = write_bundle(tmp_path / "digits", "one")
    watched = Watched(repository=tmp_path)
    watched.repository.failures = [NotFoundError("not loaded")]
    shutil.rmtree(model)
    with caplog.at_level(logging.INFO):
        assert watched.poll(4) == ["unload digits"]
    assert not caplog.records


@pytest.mark.parametrize("error", [KfpMindSporeError("out of memory"), OSError("stale file handle")])
def test_other_failures_are_retried(bundle: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(watch, "_RETRY_SECONDS", 0.0)
    watched = Watched({"digits": bundle})
    watched.repository.failures = [error, error]
    write_bundle(bundle, "two")
    assert watched.poll(6) == ["reload digits"] * 3


def test_watcher_runs_until_cancelled(bundle: Path) -> None:
    watched = Watched({"digits": bundle})
    called = asyncio.Event()

    async def reload(name: str) -> None:
        called.set()

    watched.repository.reload = reload

    async def run() -> None:
        running = asyncio.create_task(ModelWatcher(watched.repository, 0.005).run())
        await asyncio.sleep(0)
        write_bundle(bundle, "two")
        await asyncio.wait_for(called.wait(), 300)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
