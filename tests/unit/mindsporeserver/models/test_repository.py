"""Real bundles that are loaded, replaced, damaged and unloaded under requests."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from kfp_mindspore.errors import CorruptBundleError, KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.formats.bundle import MODEL_FILE, SIGNATURE_FILE, ModelBundle, write_bundle
from mindsporeserver.errors import InvalidRequestError, NotReadyError, UnknownModelError
from mindsporeserver.models.inference_executor import InferenceExecutor
from mindsporeserver.models.model import BundleReplacedError, MindSporeModel, ModelSettings
from mindsporeserver.models.repository import Repository, Sources
from mindsporeserver.observability.metrics import ServerMetrics

pytestmark = pytest.mark.mindspore

IMAGES = np.linspace(0, 1, 2 * 64, dtype=np.float32).reshape(2, 1, 8, 8)
SETTINGS = ModelSettings(max_batch=1)


@pytest.fixture(scope="module")
def thread() -> Iterator[InferenceExecutor]:
    thread = InferenceExecutor()
    yield thread
    thread.close()


@pytest.fixture
def put(models: Path) -> Callable[[Path, str], Path]:
    """Return a function that writes the digits classifier to a path, with a note in its signature."""

    def put(path: Path, note: str) -> Path:
        bundle = ModelBundle.open(models / "free", verify=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_bundle(path) as writer:
            shutil.copy(bundle.mindir, writer.directory)
            metadata = {**bundle.signature.metadata, "note": note}
            writer.sign(dataclasses.replace(bundle.signature, metadata=metadata))
        return path

    return put


@pytest.fixture
def make(thread: InferenceExecutor) -> Callable[..., Repository]:
    """Return what makes a repository, and keeps the models that it opened in `opened`."""

    def make(sources: Sources, *, kind: type[MindSporeModel] = MindSporeModel) -> Any:
        metrics = ServerMetrics(CollectorRegistry())
        opened: list[MindSporeModel] = []

        def open_model(name: str, bundle: ModelBundle, version: str) -> MindSporeModel:
            opened.append(kind(name, bundle, version=version, settings=SETTINGS, executor=thread, metrics=metrics))
            return opened[-1]

        repository: Any = Repository(sources, open_model, metrics)
        repository.opened = opened
        return repository

    return make


def read_note(repository: Repository, name: str = "digits", version: str = "") -> str:
    return repository.get_model(name, version).bundle.signature.metadata["note"]


async def infer(model: MindSporeModel) -> None:
    with model.admit():
        outputs, _ = await model.infer({"image": IMAGES})
    assert outputs["output"].shape == (2, 10)


def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(scenario(), 300)

    asyncio.run(run())


def touch_bundle(path: Path) -> Path:
    """Make a directory with the files of a bundle."""
    path.mkdir(parents=True)
    (path / SIGNATURE_FILE).write_text("{}")
    return path


def test_list_bundles_of_model(tmp_path: Path) -> None:
    for name in ("1", "2", "10", "02", "0", "-1", "1.5", "latest", "\u0661", "9" * 19):
        touch_bundle(tmp_path / "digits" / name)
    (tmp_path / "digits" / "11").write_text("no directory")
    found = Sources({"digits": tmp_path / "digits"}).list_bundles("digits")
    assert found == {"10": tmp_path / "digits" / "10"}
    sources = Sources({"digits": tmp_path / "digits"}, all_versions=True)
    assert list(sources.list_bundles("digits")) == ["1", "2", "10"]
    plain = touch_bundle(tmp_path / "plain")
    touch_bundle(plain / "7")
    assert Sources({"plain": plain}, all_versions=True).list_bundles("plain") == {"1": plain}
    empty = tmp_path / "empty"
    empty.mkdir()
    assert Sources({"empty": empty}).list_bundles("empty") == {"1": empty}


BAD_NAMES = [
    "..",
    ".",
    "",
    "../secret",
    "a/../../secret",
    "/etc",
    "a/b",
    ".hidden",
    "a\0b",
    "a b",
    "ä",
    "a\n",
    "%2e%2e",
    "a" * 256,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_name_outside_repository_is_not_found(tmp_path: Path, make: Any, name: str) -> None:
    touch_bundle(tmp_path / "secret")
    touch_bundle(tmp_path / "models" / "a" / "b")
    touch_bundle(tmp_path / "models" / ".hidden")
    touch_bundle(tmp_path / "models" / "a b")
    sources = Sources(repository=tmp_path / "models")
    assert sources.list_names() == ["a"]
    with pytest.raises(NotFoundError) as caught:
        sources.list_bundles(name)
    assert len(caught.value.message) < 250
    assert str(tmp_path) not in caught.value.message
    repository = make(sources)

    async def scenario() -> None:
        for action in (repository.load, repository.reload, repository.unload):
            with pytest.raises(NotFoundError):
                await action(name)
        with pytest.raises(UnknownModelError):
            repository.get_model(name)
        # Unknown names of clients are not stored.
        assert (repository._failures, repository._unloaded) == ({}, set())

    run_scenario(scenario)


def test_model_directory_has_precedence_over_repository(tmp_path: Path) -> None:
    touch_bundle(tmp_path / "models" / "a")
    touch_bundle(tmp_path / "models" / "b")
    (tmp_path / "models" / "file").write_text("")
    sources = Sources({"a": touch_bundle(tmp_path / "other")}, tmp_path / "models")
    assert sources.list_names() == ["a", "b"]
    assert sources.list_bundles("a") == {"1": tmp_path / "other"}


def test_missing_repository(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--model_repository: .* cannot be read: No such file or directory"):
        Sources(repository=tmp_path / "none").list_names()


def test_all_versions_and_latest(tmp_path: Path, put: Any, make: Any) -> None:
    for version in ("1", "2", "10"):
        put(tmp_path / "digits" / version, f"v{version}")
    repository = make(Sources({"digits": tmp_path / "digits"}, all_versions=True))
    latest = make(Sources({"digits": tmp_path / "digits"}))

    async def scenario() -> None:
        with pytest.raises(NotReadyError):
            repository.get_model("digits")
        with pytest.raises(NotReadyError):
            repository.get_model("digits", "2")
        with pytest.raises(UnknownModelError):
            repository.get_model("cats")
        assert not repository.loaded
        await repository.load_all()
        await latest.load_all()
        assert repository.loaded
        assert repository.list_versions("digits") == ["1", "2", "10"]
        assert latest.list_versions("digits") == ["10"]
        assert read_note(repository) == read_note(repository, version="10") == read_note(latest) == "v10"
        assert read_note(repository, version="2") == "v2"
        with pytest.raises(UnknownModelError, match="Model with name digits has no version 3"):
            repository.get_model("digits", "3")
        assert {path: model.version for path, (_, model) in repository.routes.items()} == {
            "/v1/models/digits:predict": "10",
            "/v2/models/digits/infer": "10",
            "/v2/models/digits/versions/1/infer": "1",
            "/v2/models/digits/versions/2/infer": "2",
            "/v2/models/digits/versions/10/infer": "10",
        }
        kept = repository.get_model("digits", "1")
        shutil.rmtree(tmp_path / "digits" / "10")
        put(tmp_path / "digits" / "3", "v3")
        await repository.reload("digits")
        assert repository.list_versions("digits") == ["1", "2", "3"]
        assert read_note(repository) == "v3"
        assert repository.get_model("digits", "1") is kept
        assert sorted(repository.routes)[-1] == "/v2/models/digits/versions/3/infer"
        for version in ("1", "2", "3"):
            await infer(repository.get_model("digits", version))
        assert [entry["version"] for entry in await repository.index()] == ["1", "2", "3"]
        await repository.close()
        await latest.close()

    run_scenario(scenario)


def test_load_unload_and_load_again(tmp_path: Path, put: Any, make: Any) -> None:
    put(tmp_path / "models" / "digits", "first")
    repository = make(Sources(repository=tmp_path / "models"))

    async def scenario() -> None:
        await repository.load_all()
        put(tmp_path / "models" / "wine", "new")
        unavailable = {"name": "wine", "version": "", "state": "UNAVAILABLE", "reason": ""}
        ready = {"name": "digits", "version": "1", "state": "READY", "reason": ""}
        assert await repository.index() == [ready, unavailable]
        await repository.load("wine")
        assert read_note(repository, "wine") == "new"
        model = repository.get_model("digits")
        requests = [asyncio.create_task(infer(model)) for _ in range(20)]
        await asyncio.sleep(0)
        await repository.unload("digits")
        await asyncio.gather(*requests)
        with pytest.raises(UnknownModelError):
            repository.get_model("digits")
        assert not [path for path in repository.routes if "digits" in path]
        assert (await repository.index())[0] == {**unavailable, "name": "digits", "reason": "unloaded"}
        with pytest.raises(NotFoundError, match="model 'digits': not loaded"):
            await repository.unload("digits")
        # Changed files do not load it again, a load request does.
        await repository.reload("digits")
        with pytest.raises(UnknownModelError):
            repository.get_model("digits")
        await repository.load("digits")
        await repository.reload("digits")
        await infer(repository.get_model("digits"))
        shutil.rmtree(tmp_path / "models" / "wine")
        with pytest.raises(NotFoundError, match="model 'wine': no such directory"):
            await repository.load("wine")
        await infer(repository.get_model("wine"))
        await repository.close()

    run_scenario(scenario)


def test_unchanged_model_is_kept_and_changed_one_replaced_under_load(tmp_path: Path, put: Any, make: Any) -> None:
    path = put(tmp_path / "digits", "first")
    repository = make(Sources({"digits": path}))

    async def scenario() -> None:
        await repository.load_all()
        first = repository.get_model("digits")
        for again in (repository.load, repository.reload):
            await again("digits")
            assert repository.get_model("digits") is first
        assert len(repository.opened) == 1
        changing, count = True, 0

        async def send_requests() -> None:
            nonlocal count
            while changing:
                await infer(repository.get_model("digits"))
                count += 1

        clients = [asyncio.create_task(send_requests()) for _ in range(4)]
        for note in ("second", "third"):
            put(path, note)
            before = count
            await repository.reload("digits")
            assert read_note(repository) == note
            assert count > before
        changing = False
        await asyncio.gather(*clients)
        assert not first.ready
        await repository.close()

    run_scenario(scenario)


@pytest.mark.parametrize("action", ["reload", "unload"])
def test_admitted_request_is_computed_after_its_model_is_replaced(
    tmp_path: Path, put: Any, make: Any, action: str
) -> None:
    path = put(tmp_path / "digits", "first")
    repository = make(Sources({"digits": path}))

    async def scenario() -> None:
        await repository.load_all()
        model = repository.get_model("digits")
        with model.admit():
            # Its body is arriving, decoded or transformed: the batcher has no request.
            put(path, "second")
            await getattr(repository, action)("digits")
            await asyncio.wrap_future(model._executor.call(lambda: None))
            outputs, _ = await model.infer({"image": IMAGES})
            assert outputs["output"].shape == (2, 10)
            closing = asyncio.create_task(model.close())
            await asyncio.sleep(0)
            assert not closing.done()
        await closing
        with pytest.raises(NotReadyError):
            model.admit()
        await repository.close()

    run_scenario(scenario)


def flip(path: Path) -> None:
    content = bytearray((path / MODEL_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (path / MODEL_FILE).write_bytes(content)


def cut(path: Path) -> None:
    bundle = ModelBundle.open(path)
    content = bundle.mindir.read_bytes()
    with write_bundle(path) as writer:
        (writer.directory / MODEL_FILE).write_bytes(content[:500])
        writer.sign(bundle.signature)


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (lambda path: (path / SIGNATURE_FILE).write_text("{"), KfpMindSporeError, SIGNATURE_FILE),
        (lambda path: (path / MODEL_FILE).unlink(), UserError, MODEL_FILE),
        (lambda path: shutil.rmtree(path), NotFoundError, "no such directory"),
        (cut, UserError, "MindSpore cannot load it"),
    ],
    ids=["signature", "file", "directory", "graph"],
)
def test_failed_load_leaves_previous_model(
    tmp_path: Path, put: Any, make: Any, damage: Any, kind: type[Exception], message: str
) -> None:
    path = put(tmp_path / "digits", "first")
    repository = make(Sources({"digits": path}))

    async def scenario() -> None:
        await repository.load_all()
        first = repository.get_model("digits")
        put(path, "second")
        damage(path)
        for again in (repository.load, repository.reload):
            with pytest.raises(kind) as caught:
                await again("digits")
            assert message in str(caught.value)
        assert repository.get_model("digits") is first
        await infer(first)
        ((entry),) = await repository.index()
        assert (entry["state"], message in entry["reason"]) == ("READY", True)
        shutil.rmtree(path, ignore_errors=True)
        put(path, "third")
        await repository.reload("digits")
        assert read_note(repository) == "third"
        assert (await repository.index())[0]["reason"] == ""
        await repository.close()

    run_scenario(scenario)


def test_load_verifies_digests_of_new_signature(tmp_path: Path, put: Any, make: Any) -> None:
    path = put(tmp_path / "digits", "first")
    repository = make(Sources({"digits": path}))

    async def scenario() -> None:
        await repository.load_all()
        put(path, "second")
        flip(path)
        with pytest.raises(CorruptBundleError, match="sha256 must be"):
            await repository.load("digits")
        assert read_note(repository) == "first"
        await repository.close()

    run_scenario(scenario)


@pytest.mark.parametrize("again", ["load", "reload"])
def test_load_of_bundle_damaged_in_place_fails(tmp_path: Path, put: Any, make: Any, again: str) -> None:
    path = put(tmp_path / "digits", "first")
    repository = make(Sources({"digits": path}))

    async def scenario() -> None:
        await repository.load_all()
        first = repository.get_model("digits")
        content = (path / MODEL_FILE).read_bytes()
        flip(path)
        with pytest.raises(CorruptBundleError, match="sha256 must be"):
            await getattr(repository, again)("digits")
        assert repository.get_model("digits") is first
        await infer(first)
        assert "sha256 must be" in (await repository.index())[0]["reason"]
        (path / MODEL_FILE).write_bytes(content)
        await getattr(repository, again)("digits")
        assert repository.get_model("digits") is first
        assert (await repository.index())[0]["reason"] == ""
        await repository.close()

    run_scenario(scenario)


def test_directory_that_cannot_be_read_is_error_without_its_path(tmp_path: Path, make: Any) -> None:
    repository = make(Sources({"digits": tmp_path / ("a" * 256)}))

    async def scenario() -> None:
        with pytest.raises(KfpMindSporeError, match="model 'digits': cannot be read: File name too long") as caught:
            await repository.load("digits")
        assert str(tmp_path) not in caught.value.message

    run_scenario(scenario)


def test_invalid_models_at_startup(tmp_path: Path, put: Any, make: Any) -> None:
    put(tmp_path / "models" / "good", "good")
    (tmp_path / "models" / "bad").mkdir()
    (tmp_path / "bad" / "empty").mkdir(parents=True)

    async def scenario() -> None:
        repository = make(Sources(repository=tmp_path / "models"))
        await repository.load_all()
        assert repository.loaded
        bad, good = await repository.index()
        assert (bad["state"], "an empty directory" in bad["reason"], good["state"]) == ("UNAVAILABLE", True, "READY")
        with pytest.raises(UnknownModelError):
            repository.get_model("bad")
        for sources in (
            Sources({"bad": tmp_path / "models" / "bad"}, tmp_path / "models"),
            Sources(repository=tmp_path / "bad"),
        ):
            failing = make(sources)
            with pytest.raises(UserError, match="an empty directory"):
                await failing.load_all()
            assert not failing.loaded
        (tmp_path / "bad" / "empty").rmdir()
        await make(Sources(repository=tmp_path / "bad")).load_all()
        await repository.close()

    run_scenario(scenario)


def test_load_of_loaded_model_and_of_added_version_leaves_each_version_ready(
    tmp_path: Path, put: Any, make: Any
) -> None:
    put(tmp_path / "digits" / "1", "v1")
    repository = make(Sources({"digits": tmp_path / "digits"}, all_versions=True))

    async def scenario() -> None:
        await repository.load_all()
        first = repository.get_model("digits", "1")
        await repository.load("digits")
        put(tmp_path / "digits" / "2", "v2")
        await repository.reload("digits")
        # The replaced model is closed by a task of its own.
        for _ in range(10):
            await asyncio.sleep(0)
        assert repository.get_model("digits", "1") is first
        assert {(entry["version"], entry["state"]) for entry in await repository.index()} == {
            ("1", "READY"),
            ("2", "READY"),
        }
        for version in ("", "1", "2"):
            model = repository.get_model("digits", version)
            model.admit()
            await infer(model)
        await repository.close()

    run_scenario(scenario)


@pytest.mark.parametrize("times", [1, 5])
def test_bundle_replaced_during_its_load_is_loaded_again(tmp_path: Path, put: Any, make: Any, times: int) -> None:
    path = put(tmp_path / "digits", "0")
    rest = list(range(1, times + 1))

    class Meddled(MindSporeModel):
        def _finish(self) -> None:
            if rest:
                put(path, str(rest.pop(0)))
            super()._finish()

    repository = make(Sources({"digits": path}), kind=Meddled)

    async def scenario() -> None:
        if times < 5:
            await repository.load("digits")
            assert read_note(repository) == str(times)
            await infer(repository.get_model("digits"))
        else:
            with pytest.raises(BundleReplacedError, match="was replaced during its load"):
                await repository.load("digits")
        assert len(repository.opened) == min(times + 1, 5)
        await repository.close()

    run_scenario(scenario)


def test_concurrent_loads_are_serialised(tmp_path: Path, put: Any, make: Any) -> None:
    path = put(tmp_path / "digits", "first")
    repository = make(Sources({"digits": path}))

    async def scenario() -> None:
        await asyncio.gather(repository.load_all(), *(repository.load("digits") for _ in range(10)))
        assert len(repository.opened) == 1
        results = await asyncio.gather(
            *(repository.unload("digits") if index % 2 else repository.load("digits") for index in range(10)),
            return_exceptions=True,
        )
        assert [result for result in results if result is not None and not isinstance(result, NotFoundError)] == []
        with pytest.raises(UnknownModelError):
            repository.get_model("digits")
        await repository.load("digits")
        await infer(repository.get_model("digits"))
        await repository.close()

    run_scenario(scenario)


def test_signature_overrides_limits(put: Callable[[Path, str], Path], make: Callable[..., Any], tmp_path: Path) -> None:
    own = put(tmp_path / "own", "own")
    bundle = ModelBundle.open(own)
    with write_bundle(own) as writer:
        shutil.copy(bundle.mindir, writer.directory)
        metadata = {"serving": '{"max_batch": 2, "max_delay_ms": 3, "max_queue": 5}'}
        writer.sign(dataclasses.replace(bundle.signature, metadata=metadata))
    repository = make(Sources({"own": own, "plain": put(tmp_path / "plain", "plain")}))

    async def serve() -> None:
        await repository.load_all()
        settings = repository.get_model("own").settings
        assert (settings.max_batch, settings.limits.max_queue, settings.limits.max_delay_seconds) == (2, 5, 0.003)
        assert repository.get_model("plain").settings == SETTINGS
        with pytest.raises(InvalidRequestError, match="at most 5 rows, got 6"):
            await repository.get_model("own").infer({"image": np.repeat(IMAGES[:1], 6, axis=0)})
        await repository.close()

    asyncio.run(serve())
