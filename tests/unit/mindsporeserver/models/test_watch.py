"""Bundles that are replaced, copied file by file, deleted, brought back and switched by symbolic links."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import Signature, TensorSpec, write_bundle
from mindsporeserver.models import watch as watch_module
from mindsporeserver.models.watch import BundleWatch, Change, follow

FILES = ("model.mindir", "labels.txt", "signature.json")


def make_bundle(path: Path, content: str) -> Path:
    """Write a bundle that is whole but that its model is no graph; the files of any two have the same sizes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_bundle(path) as writer:
        (writer.directory / "model.mindir").write_text(f"{content:>1000}")
        (writer.directory / "labels.txt").write_text(f"{content:>10}")
        writer.sign(
            Signature(
                inputs=(TensorSpec("image", "float32", (-1, 4)),),
                outputs=(TensorSpec("scores", "float32", (-1, 3)),),
                mindspore_version="2.9.0",
            )
        )
    return path


def changed(name: str = "digits") -> list[Change]:
    return [Change(name, "changed")]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "models" / "digits", "one")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "elsewhere" / "digits", "two")


class TestOneModel:
    def test_nothing_happens(self, bundle: Path) -> None:
        watch = BundleWatch({"digits": bundle})
        assert [watch.poll() for _ in range(3)] == [[], [], []]

    def test_replaced_as_bundles_are(self, bundle: Path) -> None:
        watch = BundleWatch({"digits": bundle})
        for content in ("two", "six", "one"):
            make_bundle(bundle, content)
            assert watch.poll() == changed()
            assert watch.poll() == []

    def test_replaced_by_the_same(self, bundle: Path) -> None:
        watch = BundleWatch({"digits": bundle})
        make_bundle(bundle, "one")
        assert watch.poll() == []
        for file in bundle.iterdir():
            os.utime(file)
        assert watch.poll() == []

    @pytest.mark.parametrize("order", [FILES, FILES[::-1], (FILES[2], FILES[0], FILES[1])])
    def test_copied_file_by_file(self, bundle: Path, other: Path, order: tuple[str, ...]) -> None:
        watch = BundleWatch({"digits": bundle})
        for name in order[:-1]:
            shutil.copyfile(other / name, bundle / name)
            assert watch.poll() == []
        shutil.copyfile(other / order[-1], bundle / order[-1])
        assert watch.poll() == changed()
        assert watch.poll() == []

    def test_copied_half_of_a_file(self, bundle: Path, other: Path) -> None:
        watch = BundleWatch({"digits": bundle})
        for name in FILES:
            content = (other / name).read_bytes()
            (bundle / name).write_bytes(content[: len(content) // 2])
            assert watch.poll() == []
            (bundle / name).write_bytes(content)
        assert watch.poll() == changed()

    @settings(max_examples=40, deadline=None)
    @given(steps=st.lists(st.sampled_from([*FILES, "poll"]), max_size=12))
    def test_in_any_order_it_is_reported_once_and_only_when_whole(
        self, tmp_path_factory: pytest.TempPathFactory, steps: list[str]
    ) -> None:
        root = tmp_path_factory.mktemp("any")
        bundle, other = make_bundle(root / "a" / "digits", "one"), make_bundle(root / "b" / "digits", "two")
        watch = BundleWatch({"digits": bundle})
        copied: set[str] = set()
        reported = 0
        for step in [*steps, *FILES, "poll", "poll"]:
            if step != "poll":
                shutil.copyfile(other / step, bundle / step)
                copied.add(step)
                continue
            changes = watch.poll()
            assert not changes or copied == set(FILES)
            reported += len(changes)
        assert reported == 1

    def test_a_damaged_bundle_is_not_reported_before_it_is_mended(
        self, bundle: Path, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch_module, "_SETTLED_NS", 0)
        watch = BundleWatch({"digits": bundle})
        (other / "model.mindir").write_text(f"{'bit':>1000}")
        shutil.copytree(other, bundle, dirs_exist_ok=True)
        assert [watch.poll() for _ in range(3)] == [[], [], []]
        (bundle / "model.mindir").write_text(f"{'two':>1000}")
        assert watch.poll() == changed()

    def test_files_are_read_only_when_the_signature_is_another(
        self, bundle: Path, other: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch_module, "_SETTLED_NS", 0)
        opened: list[Path] = []
        open_bundle = watch_module.ModelBundle.open
        monkeypatch.setattr(
            watch_module.ModelBundle,
            "open",
            lambda path, verify=True: (opened.append(path), open_bundle(path, verify=verify))[1],
        )
        watch = BundleWatch({"digits": bundle})
        assert len(opened) == 1
        watch.poll()
        watch.poll()
        assert len(opened) == 1
        shutil.copytree(other, bundle, dirs_exist_ok=True)
        assert watch.poll() == changed()
        watch.poll()
        assert len(opened) == 2

    @pytest.mark.parametrize("polls", [0, 1, 5])
    def test_deleted_and_brought_back(self, bundle: Path, polls: int) -> None:
        watch = BundleWatch({"digits": bundle})
        shutil.rmtree(bundle)
        assert [watch.poll() for _ in range(polls)] == [[]] * polls
        make_bundle(bundle, "one")
        assert watch.poll() == []
        shutil.rmtree(bundle)
        assert [watch.poll() for _ in range(polls)] == [[]] * polls
        make_bundle(bundle, "two")
        assert watch.poll() == changed()

    def test_missing_at_first(self, tmp_path: Path) -> None:
        watch = BundleWatch({"digits": tmp_path / "digits"})
        assert watch.poll() == []
        make_bundle(tmp_path / "digits", "one")
        assert watch.poll() == changed()

    def test_several(self, tmp_path: Path) -> None:
        paths = {name: make_bundle(tmp_path / name, "one") for name in ("b", "a", "c")}
        watch = BundleWatch(paths)
        make_bundle(paths["c"], "two")
        make_bundle(paths["a"], "two")
        assert watch.poll() == [Change("a", "changed"), Change("c", "changed")]


class TestLinks:
    def test_a_link_to_a_directory_is_switched(self, tmp_path: Path) -> None:
        for content in ("one", "two"):
            make_bundle(tmp_path / content, content)
        link = tmp_path / "digits"
        link.symlink_to("one")
        watch = BundleWatch({"digits": link})
        assert watch.poll() == []
        switch(link, "two")
        assert watch.poll() == changed()
        assert watch.poll() == []

    def test_as_the_kubelet_switches_a_volume(self, tmp_path: Path) -> None:
        volume = tmp_path / "models"
        volume.mkdir()
        for content in ("..2026_one", "..2026_two", "..2026_same"):
            make_bundle(volume / content, content[-3:].replace("ame", "two"))
        (volume / "..data").symlink_to("..2026_one")
        for name in FILES:
            (volume / name).symlink_to(f"..data/{name}")
        watch = BundleWatch({"digits": volume})
        assert watch.poll() == []
        switch(volume / "..data", "..2026_two")
        assert watch.poll() == changed()
        switch(volume / "..data", "..2026_same")
        assert watch.poll() == []
        # Only the links of one directory are models' files; the kubelet's own directories are no models.
        assert BundleWatch(repository=volume).poll() == []


def switch(link: Path, target: str) -> None:
    temporary = link.with_name("..tmp")
    temporary.symlink_to(target)
    temporary.replace(link)


class TestVersions:
    def test_a_version_appears_changes_and_disappears(self, tmp_path: Path) -> None:
        model = tmp_path / "digits"
        make_bundle(model / "1", "one")
        watch = BundleWatch({"digits": model})
        assert watch.poll() == []
        make_bundle(model / "2", "two")
        assert watch.poll() == changed()
        make_bundle(model / "2", "six")
        assert watch.poll() == changed()
        shutil.rmtree(model / "1")
        assert [watch.poll(), watch.poll(), watch.poll()] == [[], changed(), []]

    def test_a_version_that_is_copied_or_is_none_is_left_out(self, tmp_path: Path) -> None:
        model = tmp_path / "digits"
        make_bundle(model / "1", "one")
        watch = BundleWatch({"digits": model})
        (model / "2").mkdir()
        make_bundle(model / "notes", "two")
        assert watch.poll() == []
        shutil.copytree(make_bundle(tmp_path / "elsewhere", "two"), model / "2", dirs_exist_ok=True)
        assert watch.poll() == changed()

    def test_the_last_version_disappears_but_not_its_model(self, tmp_path: Path) -> None:
        model = tmp_path / "repository" / "digits"
        make_bundle(model / "1", "one")
        watch = BundleWatch(repository=tmp_path / "repository")
        shutil.rmtree(model / "1")
        assert [watch.poll() for _ in range(4)] == [[]] * 4
        make_bundle(model / "1", "one")
        assert watch.poll() == []

    def test_a_bundle_becomes_a_directory_of_versions(self, tmp_path: Path) -> None:
        model = make_bundle(tmp_path / "digits", "one")
        watch = BundleWatch({"digits": model})
        new = tmp_path / "new"
        make_bundle(new / "1", "one")
        model.rename(tmp_path / "old")
        new.rename(model)
        assert watch.poll() == changed()


class TestRepository:
    def test_models_appear_and_disappear(self, tmp_path: Path) -> None:
        make_bundle(tmp_path / "digits", "one")
        watch = BundleWatch(repository=tmp_path)
        assert watch.poll() == []
        make_bundle(tmp_path / "faces", "one")
        assert watch.poll() == [Change("faces", "added")]
        make_bundle(tmp_path / "faces", "two")
        assert watch.poll() == changed("faces")
        shutil.rmtree(tmp_path / "digits")
        assert [watch.poll(), watch.poll(), watch.poll()] == [[], [Change("digits", "removed")], []]
        make_bundle(tmp_path / "digits", "one")
        assert watch.poll() == [Change("digits", "added")]

    def test_the_moment_in_which_a_directory_is_replaced(self, tmp_path: Path) -> None:
        model = make_bundle(tmp_path / "repository" / "digits", "one")
        new = make_bundle(tmp_path / "new", "two")
        watch = BundleWatch(repository=tmp_path / "repository")
        model.rename(tmp_path / "old")
        assert watch.poll() == []
        new.rename(model)
        assert watch.poll() == changed()

    def test_hidden_files_and_what_is_no_model(self, tmp_path: Path) -> None:
        watch = BundleWatch(repository=tmp_path)
        make_bundle(tmp_path / ".digits.tmp", "one")
        (tmp_path / "lost+found").mkdir()
        (tmp_path / "README").write_text("hello")
        assert [watch.poll() for _ in range(3)] == [[]] * 3
        shutil.rmtree(tmp_path / "lost+found")
        assert [watch.poll() for _ in range(3)] == [[]] * 3

    def test_a_model_that_is_copied_is_added_when_it_is_whole(self, tmp_path: Path, other: Path) -> None:
        repository = tmp_path / "repository"
        repository.mkdir()
        watch = BundleWatch(repository=repository)
        (repository / "digits").mkdir()
        for name in FILES:
            assert watch.poll() == []
            shutil.copyfile(other / name, repository / "digits" / name)
        assert watch.poll() == [Change("digits", "added")]

    def test_a_repository_that_is_not_there_for_a_while_keeps_its_models(self, tmp_path: Path) -> None:
        repository = tmp_path / "repository"
        make_bundle(repository / "digits", "one")
        watch = BundleWatch(repository=repository)
        repository.rename(tmp_path / "away")
        assert [watch.poll() for _ in range(4)] == [[]] * 4
        (tmp_path / "away").rename(repository)
        assert watch.poll() == []

    def test_with_models_of_their_own(self, tmp_path: Path, bundle: Path) -> None:
        repository = tmp_path / "repository"
        make_bundle(repository / "faces", "one")
        watch = BundleWatch({"digits": bundle}, repository)
        make_bundle(bundle, "two")
        make_bundle(repository / "faces", "two")
        assert watch.poll() == [Change("digits", "changed"), Change("faces", "changed")]


class _Target:
    """Notes what it was asked for, and fails as it was told to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.failures: list[KfpMindSporeError] = []
        self.heard = asyncio.Event()

    async def load(self, name: str) -> None:
        await self._do(f"load {name}")

    async def unload(self, name: str) -> None:
        await self._do(f"unload {name}")

    async def reload(self, name: str) -> None:
        await self._do(f"reload {name}")

    async def _do(self, what: str) -> None:
        self.done.append(what)
        self.heard.set()
        if self.failures:
            raise self.failures.pop(0)


class TestFollow:
    def follow(
        self,
        watch: BundleWatch,
        steps: list[Callable[[], object]],
        failures: list[KfpMindSporeError],
        calls: int = 0,
    ) -> list[str]:
        """Do one step after the other, each when what the one before it caused was heard; return what was done.

        Args:
            watch: What is followed.
            steps: The steps.
            failures: What the first calls raise.
            calls: How many calls to wait for, where they are more than the steps.
        """
        target = _Target()
        target.failures = failures

        async def main() -> None:
            following = asyncio.ensure_future(follow(watch, 0.005, target))
            for step in steps:
                target.heard.clear()
                step()
                await asyncio.wait_for(target.heard.wait(), 60)
            while len(target.done) < calls:
                target.heard.clear()
                await asyncio.wait_for(target.heard.wait(), 60)
            await asyncio.sleep(0.1)
            following.cancel()

        asyncio.run(main())
        return target.done

    def test_does_what_changed(self, tmp_path: Path) -> None:
        make_bundle(tmp_path / "digits", "one")
        watch = BundleWatch(repository=tmp_path)
        steps: list[Callable[[], object]] = [
            lambda: make_bundle(tmp_path / "faces", "one"),
            lambda: make_bundle(tmp_path / "digits", "two"),
            lambda: shutil.rmtree(tmp_path / "faces"),
        ]
        assert self.follow(watch, steps, []) == ["load faces", "reload digits", "unload faces"]

    def test_a_broken_model_is_not_tried_again_before_it_changes(self, tmp_path: Path) -> None:
        model = make_bundle(tmp_path / "digits", "one")
        steps = [lambda: make_bundle(model, "two"), lambda: make_bundle(model, "six")]
        done = self.follow(BundleWatch({"digits": model}), steps, [UserError("no graph")])
        assert done == ["reload digits", "reload digits"]

    def test_a_removed_model_that_was_not_served_is_no_failure(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = make_bundle(tmp_path / "digits", "one")
        watch = BundleWatch(repository=tmp_path)
        done = self.follow(watch, [lambda: shutil.rmtree(model)], [NotFoundError("not loaded")])
        assert done == ["unload digits"]
        assert not caplog.records

    def test_any_other_failure_is_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(watch_module, "_RETRY_SECONDS", (0.01, 0.02))
        model = make_bundle(tmp_path / "digits", "one")
        failures: list[KfpMindSporeError] = [KfpMindSporeError("worker 1 died")] * 3
        done = self.follow(BundleWatch({"digits": model}), [lambda: make_bundle(model, "two")], failures, calls=4)
        assert done == ["reload digits"] * 4
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
            f"model digits: changed on disk, tried again in {seconds} s: worker 1 died"
            for seconds in (0.01, 0.02, 0.02)
        ]
