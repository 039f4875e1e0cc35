import io
import os

import pytest

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError
from kfp_mindspore.images.builders import fetch
from kfp_mindspore.images.builders.store import ObjectStore, parse_url
from tests.support import s3_server


@pytest.fixture
def store(monkeypatch, tmp_path):
    with s3_server.start_s3_server() as server:
        for name in list(os.environ):
            if name.startswith("AWS_") and name != "AWS_CA_BUNDLE":
                monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.SECRET_KEY)
        yield server


@pytest.mark.parametrize("size", [0, 1000, 20_000_000])
def test_what_is_put_is_fetched_in_a_pod_and_removed(store, tmp_path, size) -> None:
    content = os.urandom(size)
    url = f"s3://{s3_server.BUCKET}/folder/it.tar"
    objects = ObjectStore(store.url, "eu-1")
    objects.put(url, io.BytesIO(content))
    assert fetch.main([url, str(tmp_path / "it.tar"), "--endpoint-url", store.url, "--region", "eu-1"]) == 0
    assert (tmp_path / "it.tar").read_bytes() == content
    objects.delete(url)
    objects.delete(url)
    assert store.objects == {}


def test_missing_object_and_bucket_are_told(store, tmp_path, capsys) -> None:
    with pytest.raises(NotFoundError, match=r"download of s3://contexts/none"):
        ObjectStore(store.url, "eu-1").get(f"s3://{s3_server.BUCKET}/none", io.BytesIO())
    with pytest.raises(NotFoundError, match="bucket does not exist"):
        ObjectStore(store.url, "eu-1").put("s3://other/none", io.BytesIO(b"x"))
    target = str(tmp_path / "x")
    assert fetch.main([f"s3://{s3_server.BUCKET}/none", target, "--endpoint-url", store.url, "--region", "eu-1"]) == 2
    assert capsys.readouterr().err.startswith("Error: download of s3://contexts/none")


def test_wrong_and_missing_credentials_are_told_apart_and_not_shown(store, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    with pytest.raises(UserError, match="refused"):
        ObjectStore(store.url, "eu-1").put(f"s3://{s3_server.BUCKET}/x", io.BytesIO(b"x"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="AWS_ACCESS_KEY_ID") as caught:
        ObjectStore(store.url, "eu-1").put(f"s3://{s3_server.BUCKET}/x", io.BytesIO(b"x"))
    assert s3_server.SECRET_KEY not in str(caught.value)


def test_store_that_does_not_answer_is_a_failure(store, free_port, monkeypatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(KfpMindSporeError, match="upload to") as caught:
        ObjectStore(f"http://127.0.0.1:{free_port}", "eu-1").put(f"s3://{s3_server.BUCKET}/x", io.BytesIO(b"x"))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("url", ["s3://", "s3://bucket", "s3:///key", "http://bucket/key", "bucket/key"])
def test_other_urls_are_refused(url) -> None:
    with pytest.raises(UserError, match="must be s3://BUCKET/KEY"):
        parse_url(url)
