"""Models from paths and URIs; the downloads come from real HTTP servers on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from kfp_mindspore.errors import CorruptBundleError, MissingExtraError, UserError
from kfp_mindspore.formats.bundle import ModelBundle
from mindsporeserver.models import storage
from mindsporeserver.models.storage import hide_secrets, resolve_model
from tests.support.http_server import Handler, Server

BUNDLE = Path(__file__).parents[3] / "fixtures" / "0.1.0" / "bundle"

needs_storage = pytest.mark.skipif(
    importlib.util.find_spec("kserve_storage") is None, reason="kserve-storage is not installed (extra storage)"
)


@dataclass
class Store:
    """An HTTP server over a dictionary, with the part of S3 that a download uses."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


TYPES = {".gz": "application/gzip", ".tar": "application/x-tar", ".zip": "application/zip"}


def make_handler(store: Store) -> type[Handler]:
    class StoreHandler(Handler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            store.requests.append(self.path)
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            if "encoding-type" in query:
                self._answer(200, self._list(parts.path.strip("/"), query.get("prefix", [""])[0]), "application/xml")
            elif parts.path in store.files:
                kind = TYPES.get(Path(parts.path).suffix, "application/octet-stream")
                self._answer(200, store.files[parts.path], kind)
            elif parts.path.strip("/") == "bucket":
                self._answer(200, b"", "application/xml")
            else:
                self._answer(404, b"", "text/plain")

        def _list(self, bucket: str, prefix: str) -> bytes:
            keys = [path.removeprefix(f"/{bucket}/") for path in sorted(store.files)]
            contents = "".join(
                f"<Contents><Key>{key}</Key><Size>{len(store.files[f'/{bucket}/{key}'])}</Size></Contents>"
                for key in keys
                if key.startswith(prefix)
            )
            return f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.respond(status, body, {"Content-Type": kind})

    return StoreHandler


# A root file system of its own, as a container has.
_CONTAINER = """
mount -t tmpfs container "$1" && cp -r "$2" "$1/models" && cp /bin/busybox "$1" && mkdir "$1/old" && cd "$1" &&
pivot_root . old && exec /busybox sh -c '/busybox umount -l /old; echo started; exec /busybox sleep 600'
"""


def test_model_in_other_container_is_copied(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real path below a process's root in /proc is that container's own, which this process does not have."""
    if os.geteuid() or not Path("/bin/busybox").is_file():
        pytest.skip("needs root, and Debian's busybox-static")
    (tmp_path / "root").mkdir()
    command = ["unshare", "--mount", "sh", "-c", _CONTAINER, "sh", str(tmp_path / "root"), str(BUNDLE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sidecar:
        try:
            assert sidecar.stdout is not None
            assert sidecar.stdout.readline() == b"started\n"
            link = tmp_path / "models"
            link.symlink_to(Path("/proc", str(sidecar.pid), "root", "models"))
            monkeypatch.setenv("MODEL_INIT_MODE", "async")
            copied = resolve_model(link, cache)
        finally:
            sidecar.kill()
    assert copied.parent == cache
    ModelBundle.open(copied)


def test_directory_of_sidecar_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KServe's sidecar links the model after the server has started."""
    link = tmp_path / "models"
    assert resolve_model(link, tmp_path / "cache") == link
    monkeypatch.setenv("MODEL_INIT_MODE", "async")
    timer = threading.Timer(0.3, link.symlink_to, [tmp_path])
    timer.start()
    assert resolve_model(link, tmp_path / "cache") == link
    assert link.is_dir()


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store("")
    with Server(make_handler(made)) as server:
        made.url = server.url
        yield made


@pytest.fixture
def bundle(local_services: Any) -> Path:
    path: Path = local_services.make_bundle("digits")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def pack_tar(folder: Path, prefix: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in folder.iterdir():
            archive.add(file, f"{prefix}{file.name}")
    return buffer.getvalue()


def pack_zip(folder: Path, prefix: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"{prefix}{file.name}")
    return buffer.getvalue()


def list_cache(cache: Path) -> list[str]:
    return sorted(entry.name for entry in cache.iterdir())


@pytest.mark.parametrize("path", ["/mnt/models", "models/digits", "models:digits", "s3:/not/a/uri", "."])
def test_path_is_returned_unchanged(path: str, cache: Path) -> None:
    assert resolve_model(path, cache) == Path(path)
    assert resolve_model(Path(path), cache) == Path(path)
    assert not cache.exists()


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///mnt/models", "/mnt/models"),
        ("file://localhost/mnt/models", "/mnt/models"),
        ("FILE:///a%20b/c", "/a b/c"),
    ],
)
def test_file_uris_need_no_library(uri: str, path: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.importlib.util, "find_spec", lambda _: None)
    assert resolve_model(uri, cache) == Path(path)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("file://models/digits", "must be file:///absolute/directory, got file://models/digits"),
        ("pvc://claim/model", "KServe mounts it into the pod"),
        ("minio://bucket/model", "must be a directory or one of file://, s3://, gs://"),
        ("ftp://user:secret@host/model?sig=secret", "ftp://host/model: must be a directory"),
    ],
)
def test_invalid_uris(uri: str, expected: str, cache: Path) -> None:
    with pytest.raises(UserError) as caught:
        resolve_model(uri, cache)
    assert expected in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", storage.SCHEMES)
def test_missing_library(scheme: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError) as caught:
        resolve_model(f"{scheme}://bucket/model", cache)
    assert str(caught.value) == (
        "kserve-storage is not installed\nInstall it with: pip install 'kfp-mindspore[storage]'"
    )


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://bucket/model", "s3://bucket/model"),
        ("https://user:secret@host:8443/a.zip?X-Signature=secret#secret", "https://host:8443/a.zip"),
        ("https://a@b@host/x", "https://host/x"),
    ],
)
def test_hide_secrets(uri: str, shown: str) -> None:
    assert hide_secrets(uri) == shown


@needs_storage
@pytest.mark.parametrize(
    ("file", "pack", "prefix"),
    [
        ("digits.tar.gz", pack_tar, ""),
        ("digits.tar.gz", pack_tar, "digits-v1/"),
        ("digits.zip", pack_zip, ""),
        ("digits.zip", pack_zip, "digits-v1/"),
    ],
)
def test_download_of_archive(
    store: Store, bundle: Path, cache: Path, file: str, pack: Callable[[Path, str], bytes], prefix: str
) -> None:
    store.files[f"/models/{file}"] = pack(bundle, prefix)
    uri = f"{store.url}/models/{file}"
    path = resolve_model(uri, cache)
    assert path.parent == cache
    assert path.name.startswith("digits-")
    assert path.stat().st_mode & 0o777 == 0o755
    assert ModelBundle.open(path).signature == ModelBundle.open(bundle).signature
    # The existing directory is the same model.
    inode = path.stat().st_ino
    assert resolve_model(uri, cache) == path
    assert path.stat().st_ino == inode
    assert list_cache(cache) == [path.name]


@needs_storage
def test_new_model_leaves_previous_download(store: Store, local_services: Any, cache: Path) -> None:
    uri = f"{store.url}/digits.zip"
    first, second = local_services.make_bundle("first"), local_services.make_bundle("second", samples=20)
    store.files["/digits.zip"] = pack_zip(first)
    old = resolve_model(uri, cache)
    store.files["/digits.zip"] = pack_zip(second)
    new = resolve_model(uri, cache)
    assert new != old
    ModelBundle.open(old)
    assert ModelBundle.open(new).signature == ModelBundle.open(second).signature


@needs_storage
def test_damaged_download_is_replaced(store: Store, bundle: Path, cache: Path) -> None:
    store.files["/digits.zip"] = pack_zip(bundle)
    path = resolve_model(f"{store.url}/digits.zip", cache)
    (path / "model.mindir").write_bytes(b"x" * (path / "model.mindir").stat().st_size)
    assert resolve_model(f"{store.url}/digits.zip", cache) == path
    ModelBundle.open(path)
    assert list_cache(cache) == [path.name]


@needs_storage
def test_other_model_at_target_is_replaced(store: Store, local_services: Any, cache: Path) -> None:
    store.files["/digits.zip"] = pack_zip(local_services.make_bundle("right"))
    path = resolve_model(f"{store.url}/digits.zip", cache)
    right = ModelBundle.open(path).signature
    shutil.rmtree(path)
    local_services.make_bundle("wrong", samples=20).rename(path)
    assert resolve_model(f"{store.url}/digits.zip", cache) == path
    assert ModelBundle.open(path).signature == right


@needs_storage
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_directory_of_another_user_is_refused(store: Store, bundle: Path, cache: Path) -> None:
    store.files["/digits.zip"] = pack_zip(bundle)
    cache.mkdir()
    os.chown(cache, 1234, 1234)
    with pytest.raises(UserError, match="belongs to another user"):
        resolve_model(f"{store.url}/digits.zip", cache)


@needs_storage
def test_concurrent_downloads(store: Store, bundle: Path, cache: Path) -> None:
    store.files["/digits.zip"] = pack_zip(bundle)
    code = (
        "import sys; from pathlib import Path; from mindsporeserver.models.storage import resolve_model;"
        "print(resolve_model(sys.argv[1], Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, f"{store.url}/digits.zip", str(cache)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate(timeout=300)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [Path(path).name for path in paths] == list_cache(cache)


def flip(bundle: Path) -> bytes:
    damaged = bundle.with_name("damaged")
    shutil.copytree(bundle, damaged)
    file = damaged / "model.mindir"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])
    return pack_zip(damaged)


def pack_two(bundle: Path) -> bytes:
    parent = bundle.with_name("two")
    for name in ("a", "b"):
        shutil.copytree(bundle, parent / name)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in parent.rglob("*"):
            archive.write(file, file.relative_to(parent))
    return buffer.getvalue()


def pack_other(_: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("weights.onnx", b"x")
    return buffer.getvalue()


@needs_storage
@pytest.mark.parametrize(
    ("make", "kind", "expected"),
    [
        pytest.param(flip, CorruptBundleError, "sha256 must be", id="flipped bit"),
        pytest.param(pack_other, UserError, "found weights.onnx", id="no bundle"),
        pytest.param(pack_two, UserError, "found 2 of them", id="two bundles"),
        pytest.param(lambda _: b"no archive", UserError, "cannot be downloaded: Failed to unpack", id="no archive"),
        pytest.param(None, UserError, "cannot be downloaded: ", id="404"),
    ],
)
def test_download_without_valid_bundle(
    store: Store,
    bundle: Path,
    cache: Path,
    make: Callable[[Path], bytes] | None,
    kind: type[UserError],
    expected: str,
) -> None:
    if make is not None:
        store.files["/digits.zip"] = make(bundle)
    with pytest.raises(kind) as caught:
        resolve_model(f"{store.url}/digits.zip", cache)
    assert expected in str(caught.value)
    assert list_cache(cache) == []


@needs_storage
def test_failure_leaves_previous_download(store: Store, bundle: Path, cache: Path) -> None:
    store.files["/digits.zip"] = pack_zip(bundle)
    path = resolve_model(f"{store.url}/digits.zip", cache)
    store.files["/digits.zip"] = flip(bundle)
    with pytest.raises(CorruptBundleError):
        resolve_model(f"{store.url}/digits.zip", cache)
    ModelBundle.open(path)
    assert list_cache(cache) == [path.name]


@needs_storage
def test_query_of_uri_is_never_logged(
    store: Store, cache: Path, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("storage.initializer")
    caplog.set_level(logging.DEBUG, logger=logger.name)
    for url in (store.url, f"http://127.0.0.1:{free_port}"):
        with pytest.raises(UserError) as caught:
            resolve_model(f"{url}/digits.zip?X-Signature=topsecret", cache)
        assert str(caught.value).startswith(f"--model_dir: {url}/digits.zip: cannot be downloaded: ")
        assert "topsecret" not in str(caught.value) + caplog.text
    assert not logger.disabled


@needs_storage
def test_unwritable_cache(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"the directory for downloads .*file/cache cannot be written: Not a directory"):
        resolve_model(f"{store.url}/digits.zip", tmp_path / "file" / "cache")
    assert store.requests == []


@contextlib.contextmanager
def configure_s3(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        config = {"type": "s3", "endpoint_url": store.url, "access_key_id": "key", "secret_access_key": "secret"}
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            patch.setenv(name, "")
        patch.setenv("STORAGE_CONFIG", json.dumps({**config, "region": "us-east-1"}))
        yield


@needs_storage
def test_download_of_bucket_folder(store: Store, bundle: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in bundle.iterdir():
        store.files[f"/bucket/models/digits/{file.name}"] = file.read_bytes()
        store.files[f"/bucket/models/digits2/{file.name}"] = b"another model's"
    with configure_s3(store, monkeypatch):
        path = resolve_model("s3://bucket/models/digits", cache)
        assert resolve_model("s3://bucket/models/digits", cache) == path
    assert ModelBundle.open(path).signature == ModelBundle.open(bundle).signature
    assert sorted(entry.name for entry in path.iterdir()) == sorted(entry.name for entry in bundle.iterdir())


@needs_storage
@pytest.mark.parametrize("uri", ["s3://bucket/models/none", "s3://other/models/digits"])
def test_missing_bucket_folder(store: Store, cache: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with configure_s3(store, monkeypatch), pytest.raises(UserError, match=f"{uri}/: cannot be downloaded: "):
        resolve_model(uri, cache)
    assert list_cache(cache) == []


@needs_storage
@pytest.mark.mindspore
def test_server_of_uri(store: Store, models: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    store.files["/digits.tar.gz"] = pack_tar(models / "free", "free/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path))
        server = start_server(f"{store.url}/digits.tar.gz")
    server.wait("/v2/health/ready")
    assert server.request("/v2/models/digits")[1]["inputs"][0]["name"] == "image"
    (path,) = (tmp_path / "mindsporeserver-models").iterdir()
    assert ModelBundle.open(path).signature == ModelBundle.open(models / "free").signature


@needs_storage
def test_server_exits_when_download_fails(store: Store, start_server: Callable[..., Any]) -> None:
    server = start_server(f"{store.url}/none.zip")
    assert server.process.wait(60) == 2
    assert f"Error: --model_dir: {store.url}/none.zip: cannot be downloaded: " in server.log.read_text()
