"""Sources behind URIs: s3 by moto, http by a server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError
from tests.support.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectStore, start_object_store

CSV = "width,target\n" + "".join(f"{index},{index % 2}\n" for index in range(20))


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("site")
    (root / "table.csv").write_text(CSV)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        store.put("data/table.csv", CSV)
        yield store


@pytest.fixture(autouse=True)
def credentials(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


def test_file_is_read_from_http(site: str, tmp_path: Path) -> None:
    dataset = load_dataset(f"{site}/table.csv?version=2", tmp_path / "data")
    assert dataset.name == "table"
    assert sum(dataset.splits.values()) == 20


def test_file_is_read_from_s3(tmp_path: Path) -> None:
    dataset = load_dataset(f"s3://{BUCKET}/data/table.csv", tmp_path / "data")
    assert dataset.list_columns("feature")[0].fields == ("width",)
    assert sum(dataset.splits.values()) == 20


def test_dataset_directory_is_copied_from_s3(store: ObjectStore, tmp_path: Path) -> None:
    written = load_dataset("wine", tmp_path / "wine")
    for file in written.path.iterdir():
        store.put(f"wine/{file.name}", file.read_bytes())
    copied = load_dataset(f"s3://{BUCKET}/wine", tmp_path / "copy")
    assert copied.digest == written.digest
    expected, found = (read_samples(dataset, "test").inputs for dataset in (written, copied))
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name])


@pytest.mark.parametrize("uri", ["{site}/none.csv", "s3://{bucket}/none.csv"])
def test_absent_file_is_named(uri: str, site: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.csv: nothing there"):
        load_dataset(uri.format(site=site, bucket=BUCKET), tmp_path / "data")


def test_unreachable_server_is_named(site: str, tmp_path: Path) -> None:
    with pytest.raises(KfpMindSporeError, match=r"http://127\.0\.0\.1:1/table\.csv: cannot be read"):
        load_dataset("http://127.0.0.1:1/table.csv", tmp_path / "data")
