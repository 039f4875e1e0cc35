"""Sources behind URIs: s3 by moto, http by a server on this machine."""

from __future__ import annotations

import base64
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from s3fs import S3FileSystem

from kfp_mindspore.cli import main
from kfp_mindspore.data import load_dataset, read_samples
from kfp_mindspore.data.fetch import check_uri
from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.settings import BACKEND_VARIABLE, KFP_RUNTIME_VARIABLE
from kfp_mindspore.stores.config import PROBE_TIMEOUTS, open_run_source
from tests.support.http_server import Server
from tests.support.kube.fake_api_server import FakeApiServer
from tests.support.remote.object_store import BUCKET, ObjectStore, start_object_store

CSV = "width,target\n" + "".join(f"{index},{index % 2}\n" for index in range(20))


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/private.csv":
            self.send_error(403)
        else:
            super().do_GET()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""


@pytest.fixture(scope="module")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("site")
    (root / "table.csv").write_text(CSV)
    with Server(partial(Handler, directory=str(root))) as server:
        yield server.url


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with start_object_store() as store:
        store.refuse_strangers()
        store.put("data/table.csv", CSV)
        yield store


@pytest.fixture(autouse=True)
def credentials(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
    # fsspec keeps clients with the credentials of another test.
    S3FileSystem.clear_instance_cache()
    # Without a request to the metadata service of a cloud.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def step(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """Make this process a step on a cluster, whose namespace has KFP's configuration of the store."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv(KFP_RUNTIME_VARIABLE, "true")
    monkeypatch.setenv(BACKEND_VARIABLE, "kubernetes")
    with FakeApiServer().serve() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "config", namespace="team")))
        put_configuration(api, store)
        yield api


def put_configuration(api: FakeApiServer, store: ObjectStore, url: str = "") -> None:
    for kind, document in zip(("configmaps", "secrets"), store.build_kfp_configuration(url), strict=True):
        values = document.pop("stringData", {})
        if values:
            document["data"] = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
        api.put(f"/api/v1/namespaces/team/{kind}", document)


def test_file_is_read_from_http(http_server: str, tmp_path: Path) -> None:
    dataset = load_dataset(f"{http_server}/table.csv?version=2", tmp_path / "data")
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


@pytest.mark.parametrize("uri", ["{http_server}/none.csv", "s3://{bucket}/none.csv"])
def test_absent_file_is_named(uri: str, http_server: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.csv: nothing there"):
        load_dataset(uri.format(http_server=http_server, bucket=BUCKET), tmp_path / "data")


def test_unreachable_server_is_named(http_server: str, tmp_path: Path) -> None:
    with pytest.raises(KfpMindSporeError, match=r"http://127\.0\.0\.1:1/table\.csv cannot be read") as raised:
        load_dataset("http://127.0.0.1:1/table.csv", tmp_path / "data")
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("scheme", ["s3", "minio"])
def test_step_reads_with_credentials_of_its_run(scheme: str, step: FakeApiServer, tmp_path: Path) -> None:
    dataset = load_dataset(f"{scheme}://{BUCKET}/data/table.csv", tmp_path / "data")
    assert sum(dataset.splits.values()) == 20


def test_credentials_of_task_precede_those_of_run(
    step: FakeApiServer, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.secret)
    assert sum(load_dataset(f"s3://{BUCKET}/data/table.csv", tmp_path / "data").splits.values()) == 20
    assert step.requests == []


def test_refused_step_names_secret_of_its_run(step: FakeApiServer, store: ObjectStore, tmp_path: Path) -> None:
    key, store.key = store.key, "unknown"
    try:
        put_configuration(step, store)
    finally:
        store.key = key
    with pytest.raises(UserError) as raised:
        load_dataset(f"s3://{BUCKET}/data/table.csv", tmp_path / "data")
    reason = "The AWS Access Key Id you provided does not exist in our records."
    assert raised.value.message == (
        f"s3://{BUCKET}/data/table.csv cannot be read: {reason}; "
        f"credentials: Secret team/mlpipeline-minio-artifact, by the ConfigMap team/kfp-launcher, for {store.url}"
    )
    assert f"access to s3://{BUCKET}/, or add the bucket with a Secret" in raised.value.hint
    assert raised.value.exit_code == 2


def test_refusal_without_credentials_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main.run(["dataset", "load", f"s3://{BUCKET}/data/table.csv", str(tmp_path / "data")]) == 2
    assert capsys.readouterr().err == (
        f"Error: s3://{BUCKET}/data/table.csv cannot be read: Unable to locate credentials; credentials: "
        "the environment and the configuration files of this process "
        "(AWS_ACCESS_KEY_ID is not set; AWS_PROFILE is not set)\n"
        "Set AWS_ACCESS_KEY_ID and what belongs to it, such as AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL.\n"
    )


def test_refusal_of_http_server_is_one_sentence(
    http_server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["dataset", "load", f"{http_server}/private.csv", str(tmp_path / "data")]) == 2
    assert capsys.readouterr().err == (
        f"Error: {http_server}/private.csv cannot be read: 403 Forbidden; credentials: none: it was requested without\n"
        "Use a presigned URL, or copy the data to a store.\n"
    )


def test_probe_of_silent_store_ends(step: FakeApiServer, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROBE_TIMEOUTS, "read_timeout", 0.1)
    cluster = Cluster()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        put_configuration(step, store, f"http://127.0.0.1:{silent.getsockname()[1]}")
        uri = f"s3://{BUCKET}/data/table.csv"
        access = open_run_source(uri, cluster, "team", is_probe=True)
        start = time.monotonic()
        with pytest.raises(KfpMindSporeError, match="cannot be read") as raised:
            check_uri(uri, access)
        assert raised.value.exit_code == 1
        # Without the time-outs, 60 s for each of the attempts.
        assert time.monotonic() - start < 30


def test_missing_path_is_named_before_ray_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from kfp_mindspore.data.options import DatasetOptions\n"
        "from kfp_mindspore.errors import NotFoundError; from kfp_mindspore.steps.data import load_by_engine\n"
        "try: load_by_engine(sys.argv[1], 'out', DatasetOptions(engine='ray'))\n"
        "except NotFoundError as error: sys.exit(str('ray' in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "no.csv")], capture_output=True, check=False)
    assert done.stderr == b"False\n"
