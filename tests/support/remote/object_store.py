"""An S3 store by moto, and a proxy in front of it that holds chosen requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import boto3
from moto import settings
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from tests.support.http_server import Handler, Server

ACCESS_KEY, SECRET_KEY = "artifact-reader", "artifact-secret"
BUCKET = "mlpipeline"
SECONDS = 60.0


class ObjectStore:
    """A moto server with one bucket.

    Args:
        address: Address of this machine to listen on.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.key, self.secret = ACCESS_KEY, SECRET_KEY
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        self.client.create_bucket(Bucket=BUCKET)

    def refuse_strangers(self) -> None:
        """Refuse requests by other keys than `key` from now on, until the store is closed."""
        options = {"endpoint_url": self.url, "region_name": "us-east-1"}
        iam = boto3.client("iam", **options, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        # Users outlive a moto server: they belong to the process.
        user = f"reader-{uuid.uuid4()}"
        iam.create_user(UserName=user)
        pair = iam.create_access_key(UserName=user)["AccessKey"]
        self.key, self.secret = pair["AccessKeyId"], pair["SecretAccessKey"]
        statement = {"Effect": "Allow", "Action": ["s3:*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=user, PolicyName="all", PolicyDocument=policy)
        self.client = boto3.client("s3", **options, aws_access_key_id=self.key, aws_secret_access_key=self.secret)
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0

    def close(self) -> None:
        """Stop the server."""
        # A setting of the process.
        settings.INITIAL_NO_AUTH_ACTION_COUNT = math.inf
        self._server.stop()
        # fsspec keeps clients with the server's address.
        S3FileSystem.clear_instance_cache()

    def put(self, key: str, content: bytes | str) -> None:
        """Write an object."""
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def get(self, key: str) -> bytes:
        """Return the content of an object."""
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def list(self, prefix: str = "") -> list[str]:
        """Return the keys below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def build_kfp_configuration(self, url: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the ConfigMap `kfp-launcher` and the Secret with which Kubeflow Pipelines would use this store.

        Args:
            url: Address of a proxy in front of the store; empty for none.
        """
        provider = {
            "endpoint": url or self.url,
            "region": "us-east-1",
            "disableSSL": True,
            "credentials": {
                "secretRef": {
                    "secretName": "mlpipeline-minio-artifact",
                    "accessKeyKey": "accesskey",
                    "secretKeyKey": "secretkey",
                }
            },
        }
        text = json.dumps({scheme: {"default": provider} for scheme in ("s3", "minio")})
        return (
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "kfp-launcher"},
                "data": {"defaultPipelineRoot": f"s3://{BUCKET}/v2", "providers": text},
            },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "mlpipeline-minio-artifact"},
                "stringData": {"accesskey": self.key, "secretkey": self.secret},
            },
        )


@contextlib.contextmanager
def start_object_store(address: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Run a store for a block."""
    store = ObjectStore(address)
    try:
        yield store
    finally:
        store.close()


class Gate:
    """One held request: `reached` is set when it arrives, and it continues after `open`.

    Args:
        pattern: Regular expression that matches the start of `METHOD /bucket/key`.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)
        self.reached = threading.Event()
        self.open = threading.Event()

    def wait(self) -> None:
        """Wait until a request is held."""
        assert self.reached.wait(SECONDS), f"no request matched {self.pattern.pattern}"


class GatedProxy(Server):
    """Forwards requests to a store; `close_gate` holds the requests that match, `refuse` responds to them with 503.

    Args:
        store: The store.
        address: Address of this machine to listen on.
    """

    def __init__(self, store: ObjectStore, address: str = "127.0.0.1") -> None:
        super().__init__(_Forwarder, address)
        self.target = store.url.removeprefix("http://")
        self.gates: list[Gate] = []
        self.refused: re.Pattern[str] | None = None
        self.requests: list[str] = []

    def close_gate(self, pattern: str) -> Gate:
        """Hold requests that match from now on."""
        gate = Gate(pattern)
        self.gates.append(gate)
        return gate

    def close(self) -> None:
        """Stop."""
        for gate in self.gates:
            gate.open.set()
        super().close()


class _Forwarder(Handler):
    protocol_version = "HTTP/1.1"
    server: GatedProxy

    def _forward(self) -> None:
        body = self.read_body()
        line = f"{self.command} {self.path}"
        self.server.requests.append(line)
        for gate in self.server.gates:
            if gate.pattern.match(line) and not gate.open.is_set():
                gate.reached.set()
                gate.open.wait(SECONDS)
        if self.server.refused is not None and self.server.refused.match(line):
            self.respond(503)
            return
        connection = http.client.HTTPConnection(self.server.target, timeout=SECONDS)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        length = response.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward


def s3_options(url: str) -> dict[str, Any]:
    """Return fsspec options for a store of this module, as `stores.config` builds them."""
    return {
        "endpoint_url": url,
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"max_attempts": 2}},
    }
