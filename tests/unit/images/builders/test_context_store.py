import io
import os
import urllib.error
import urllib.request

import pytest

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.images import ImageOptions, PvcContextStore, S3ContextStore
from kfp_mindspore.images.builders.context_store import make_context_store, upload_context
from kfp_mindspore.images.plan import ImagePlan
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry
from tests.support.remote import s3_server

PLAN = ImagePlan(
    BuildContext([ContextEntry.from_bytes("main.py", b"print(1)\n")]),
    ImageOptions("registry.test/base"),
    f"sha256:{'d' * 64}",
)


@pytest.fixture
def server(monkeypatch, tmp_path):
    with s3_server.S3Server() as server:
        for name in list(os.environ):
            if name.startswith("AWS_") and name != "AWS_CA_BUNDLE":
                monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.SECRET_KEY)
        yield server


def make_store(server, url=f"s3://{s3_server.BUCKET}/folder/") -> S3ContextStore:
    return S3ContextStore(url, server.url, "eu-1")


@pytest.mark.parametrize("size", [0, 20_000_000])
def test_s3_context_is_read_by_its_url_and_deleted(server, size) -> None:
    content = os.urandom(size)
    store = make_store(server)
    stored = store.upload(io.BytesIO(content), "it", 60)
    assert stored.url.startswith(f"{server.url}/{s3_server.BUCKET}/folder/it.tar?")
    assert s3_server.SECRET_KEY not in stored.url
    assert urllib.request.urlopen(stored.url).read() == content
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(stored.url.partition("?")[0])
    store.delete("it")
    store.delete("it")
    assert server.objects == {}


def test_s3_errors_name_bucket_and_no_credentials(server, monkeypatch) -> None:
    with pytest.raises(NotFoundError, match=r"upload to s3://other/it.tar: .*bucket does not exist"):
        make_store(server, "s3://other").upload(io.BytesIO(b"x"), "it", 60)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    with pytest.raises(UserError, match="refused"):
        make_store(server).upload(io.BytesIO(b"x"), "it", 60)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="AWS_ACCESS_KEY_ID") as caught:
        make_store(server).upload(io.BytesIO(b"x"), "it", 60)
    assert s3_server.SECRET_KEY not in str(caught.value)


def test_unreachable_s3_service_is_failure(server, free_port, monkeypatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = S3ContextStore(f"s3://{s3_server.BUCKET}", f"http://127.0.0.1:{free_port}", "eu-1")
    with pytest.raises(KfpMindSporeError, match="upload to") as caught:
        store.upload(io.BytesIO(b"x"), "it", 60)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("fails", [False, True])
def test_context_is_deleted_from_claim_however_build_ends(tmp_path, fails) -> None:
    def build() -> None:
        with upload_context(PLAN, PvcContextStore("claim", tmp_path), "it", 60) as stored:
            (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
            assert file.name == stored.archive.rpartition("/")[2] == "it.tar"
            assert stored.volumes[0]["persistentVolumeClaim"] == {"claimName": "claim"}
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            build()
    else:
        build()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claim": "c", "claim_path": "/none"}, "claim c: /none: no such folder"),
        ({"claim": "c"}, "both or neither"),
        ({"claim_path": "/"}, "both or neither"),
        ({"claim": "c", "claim_path": "/", "store": "s3://b"}, "got both"),
        ({"store_endpoint": "http://x"}, "store_endpoint: needs store"),
        ({"store": "gs://bucket"}, "must be s3://BUCKET or s3://BUCKET/PREFIX, got 'gs://bucket'"),
        ({"store": "s3://"}, "must be s3://BUCKET"),
    ],
)
def test_context_store_options_are_validated(options, message) -> None:
    with pytest.raises(UserError, match=message):
        make_context_store(**options)


def test_context_store_is_optional() -> None:
    assert make_context_store() is None
    assert make_context_store(store="s3://b/f") == S3ContextStore("s3://b/f")
