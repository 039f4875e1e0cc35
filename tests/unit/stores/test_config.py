"""Stores of the ConfigMap kfp-launcher; the cases are those of KFP 2.17's backend/src/v2/config and objectstore."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.errors import UserError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.stores.artifact_store import STORES_VARIABLE, ArtifactStore, StoreError
from kfp_mindspore.stores.config import build_env, open_stores, read_model_store, read_providers, resolve_stores
from tests.support.kube.fake_api_server import FakeApiServer
from tests.support.remote.object_store import ACCESS_KEY, BUCKET, SECRET_KEY, start_object_store

NAMESPACE = "team"
SECRET_REF = {"secretName": "store", "accessKeyKey": "id", "secretKeyKey": "password"}
S3 = {
    "default": {
        "endpoint": "s3.example:9000",
        "region": "eu",
        "disableSSL": True,
        "credentials": {"secretRef": SECRET_REF},
    }
}


@pytest.fixture
def cluster(api: FakeApiServer, tmp_path: Path) -> Cluster:
    return Cluster(api.write_kubeconfig(tmp_path / "config", namespace=NAMESPACE))


def put_providers(api: FakeApiServer, providers: Any) -> None:
    put_config(api, providers=providers if isinstance(providers, str) else yaml.safe_dump(providers))


def put_config(api: FakeApiServer, **data: str) -> None:
    metadata = {"name": "kfp-launcher", "namespace": NAMESPACE}
    api.put(f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"kind": "ConfigMap", "metadata": metadata, "data": data})


def test_store_of_services_is_that_of_pipeline_root(api: FakeApiServer, cluster: Cluster) -> None:
    put_secret(api, "mlpipeline-minio-artifact", accesskey="key", secretkey="value")
    options = read_model_store(cluster, NAMESPACE).options
    expected = ("http://seaweedfs.kubeflow:9000", "key", "value")
    assert (options["endpoint_url"], options["key"], options["secret"]) == expected
    put_secret(api, "store", id="other", password="value")
    put_config(api, defaultPipelineRoot="s3://bucket/runs", providers=yaml.safe_dump({"s3": S3}))
    options = read_model_store(cluster, NAMESPACE, "https://s3.example").options
    assert (options["endpoint_url"], options["key"]) == ("https://s3.example", "other")
    put_config(api, defaultPipelineRoot="s3://bucket/runs", providers="")
    assert read_model_store(cluster, NAMESPACE, "https://s3.example").options["key"] == "key"
    for root in ("s3://bucket/runs", "gs://bucket/runs"):
        put_config(api, defaultPipelineRoot=root, providers="")
        with pytest.raises(UserError, match="its credentials are not in a Secret with S3 keys"):
            read_model_store(cluster, NAMESPACE)


def put_secret(api: FakeApiServer, name: str, **values: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    api.put(
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
        {"kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE}, "data": data},
    )


@pytest.mark.parametrize(
    ("uri", "providers", "endpoint", "region", "secret"),
    [
        ("minio://mlpipeline/v2/a", {}, "http://seaweedfs.kubeflow:9000", "minio", "mlpipeline-minio-artifact"),
        ("s3://b/a", {}, None, None, ""),
        ("gs://b/a", {}, None, None, ""),
        ("s3://b/a", {"s3": S3}, "http://s3.example:9000", "eu", "store"),
        ("minio://b/a", {"minio": S3}, "http://s3.example:9000", "eu", "store"),
        (
            "s3://b/a",
            {"s3": {"default": {"endpoint": "s3.amazonaws.com", "region": "eu", "credentials": {"fromEnv": True}}}},
            None,
            "eu",
            "",
        ),
        (
            "s3://b/a",
            {"s3": {"default": {"endpoint": "store.example", "credentials": {"fromEnv": True}}}},
            "https://store.example",
            None,
            "",
        ),
    ],
    ids=["default of KFP", "s3 from env", "gs from env", "s3", "minio", "AWS", "TLS"],
)
def test_store_of_uri(uri: str, providers: Any, endpoint: str | None, region: str | None, secret: str) -> None:
    (store,) = resolve_stores([uri, f"{uri}/below"], providers)
    assert store.options.get("endpoint_url") == endpoint
    assert store.options.get("client_kwargs", {}).get("region_name") == region
    assert store.secret == secret


def test_override_of_key_prefix_replaces_default() -> None:
    own = {"secretRef": {**SECRET_REF, "secretName": "other"}}
    override = {"bucketName": "b", "keyPrefix": "team/", "region": "us", "credentials": own}
    stores = resolve_stores(["s3://b/team/x", "s3://b/else/x"], {"s3": {**S3, "Overrides": [override]}})
    assert [(store.prefix, store.secret) for store in stores] == [("s3://b/team/", "other"), ("s3://b/", "store")]
    assert stores[0].options["endpoint_url"] == "http://s3.example:9000"
    assert stores[0].options["client_kwargs"] == {"region_name": "us"}


@pytest.mark.parametrize(
    ("uri", "providers", "message"),
    [
        ("/local/path", {}, "cannot read this URI: expected s3://, minio:// or gs://"),
        ("pvc://claim/x", {}, "cannot read this URI"),
        ("s3://b/x?endpoint=y", {}, "cannot use the query"),
        ("s3://b/x", {"s3": {"default": {"endpoint": "x"}}}, "credentials: must have fromEnv or secretRef"),
    ],
)
def test_unusable_store_is_refused(uri: str, providers: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_stores([uri], providers)


def test_credentials_are_references_in_pods(api: FakeApiServer, cluster: Cluster) -> None:
    put_providers(
        api, {"s3": S3, "gs": {"default": {"credentials": {"secretRef": {"secretName": "g", "tokenKey": "t"}}}}}
    )
    env = build_env(resolve_stores(["s3://b/x", "gs://c/x"], read_providers(cluster, NAMESPACE)))
    stores = json.loads(env[0]["value"])
    assert env[0]["name"] == STORES_VARIABLE
    assert [store["secrets"] for store in stores] == [
        {"key": "KFP_MINDSPORE_STORE_0_KEY", "secret": "KFP_MINDSPORE_STORE_0_SECRET"},
        {"token": "KFP_MINDSPORE_STORE_1_TOKEN"},
    ]
    assert {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in env[1:]} == {
        "KFP_MINDSPORE_STORE_0_KEY": {"name": "store", "key": "id"},
        "KFP_MINDSPORE_STORE_0_SECRET": {"name": "store", "key": "password"},
        "KFP_MINDSPORE_STORE_1_TOKEN": {"name": "g", "key": "t"},
    }


def test_launcher_reads_files_with_credentials_of_kfp(api: FakeApiServer, cluster: Cluster) -> None:
    with start_object_store() as server:
        server.put("run/model/metrics.jsonl", "{}\n")
        provider = {**S3["default"], "endpoint": server.url.removeprefix("http://"), "region": "us-east-1"}
        put_providers(api, {"minio": {"default": provider}})
        stores = resolve_stores([f"minio://{BUCKET}/run/model"], read_providers(cluster, NAMESPACE))
        with pytest.raises(UserError, match="Secret team/store with the credentials of minio://mlpipeline/ does not"):
            open_stores(stores, cluster, NAMESPACE)
        put_secret(api, "store", id=ACCESS_KEY)
        with pytest.raises(UserError, match="has no key 'password'"):
            open_stores(stores, cluster, NAMESPACE)
        put_secret(api, "store", id=ACCESS_KEY, password=SECRET_KEY)
        opened = open_stores(stores, cluster, NAMESPACE)
        assert opened.read_bytes(f"minio://{BUCKET}/run/model/metrics.jsonl") == b"{}\n"
        assert opened.read_bytes(f"minio://{BUCKET}/run/model/absent") is None
        environment = {entry["name"]: entry.get("value", "") for entry in build_env(stores)}
        with pytest.raises(StoreError, match="KFP_MINDSPORE_STORE_0_KEY is not set"):
            ArtifactStore.from_environment(environment).list_files(f"minio://{BUCKET}/run")


@pytest.mark.parametrize("text", ["s3: [", "- s3"])
def test_broken_config_map_is_named(text: str, api: FakeApiServer, cluster: Cluster) -> None:
    assert read_providers(cluster, NAMESPACE) == {}
    put_providers(api, text)
    with pytest.raises(UserError, match="ConfigMap team/kfp-launcher: providers"):
        read_providers(cluster, NAMESPACE)
