"""Requests of the client, and its retries, against a server with injected faults."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kfp_mindspore.errors import AlreadyExistsError, MissingExtraError, NotFoundError, ValidationError
from kfp_mindspore.kube import client, config
from kfp_mindspore.kube.client import AsyncClient
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.errors import (
    ApiError,
    ApiRequest,
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    NotInstalledError,
    UnauthorizedError,
    UncertainError,
    UnreachableError,
    explain_response,
    parse_status,
)
from kfp_mindspore.kube.resources import PODS, Resource
from tests.support.kube.fake_api_server import FakeApiServer, reset_once, respond_once

THINGS = Resource("example.com", "v1", "things", "Thing")
COLLECTION = THINGS.get_path("default")


def fill(server: FakeApiServer, count: int) -> None:
    for number in range(count):
        server.put(COLLECTION, {"metadata": {"name": f"thing-{number:03}"}})


def test_resource_paths() -> None:
    assert PODS.get_path("a", "b", "log") == "/api/v1/namespaces/a/pods/b/log"
    assert THINGS.get_path() == "/apis/example.com/v1/things"
    assert THINGS.get_path("a b", "../c") == "/apis/example.com/v1/namespaces/a%20b/things/..%2Fc"


@pytest.fixture
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make lists read three objects a page."""
    list_pages = functools.partialmethod(AsyncClient.list_pages, limit=3)
    monkeypatch.setattr(AsyncClient, "list_pages", list_pages)


@pytest.mark.usefixtures("short_pages")
def test_lists_are_read_by_page(server: FakeApiServer, cluster: Cluster) -> None:
    fill(server, 7)
    items = cluster.list(THINGS, "default")
    assert [item["metadata"]["name"] for item in items] == [f"thing-{number:03}" for number in range(7)]
    assert server.count("GET", "things") == 3


@pytest.mark.usefixtures("short_pages")
def test_expired_continue_tokens_restart_list(server: FakeApiServer, cluster: Cluster) -> None:
    fill(server, 7)
    expired = respond_once(410, reason="Expired")
    server.faults.append(lambda request, handler: "continue" in request.query and expired(request, handler))
    assert len(cluster.list(THINGS, "default")) == 7
    assert "limit" not in server.requests[-1].query


def test_apply_creates_and_updates(server: FakeApiServer, cluster: Cluster) -> None:
    thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}, "spec": {"a": 1}}
    assert cluster.apply(thing)["spec"] == {"a": 1}
    assert cluster.apply({**thing, "spec": {"b": 2}}, manager="me")["spec"] == {"a": 1, "b": 2}
    assert [item.query["fieldManager"] for item in server.requests if item.method == "PATCH"] == ["kfp-mindspore", "me"]
    assert server.find(THINGS.get_path("team"), "a") is not None


@pytest.mark.parametrize(
    ("status", "headers"), [(429, {"Retry-After": "0"}), (503, {}), (502, {}), (504, {}), (500, {"Retry-After": "0"})]
)
def test_transient_errors_are_retried(
    server: FakeApiServer, cluster: Cluster, status: int, headers: dict[str, str]
) -> None:
    fill(server, 1)
    server.faults.append(respond_once(status, headers=headers, times=3))
    assert cluster.get(THINGS, "thing-000", "default")["metadata"]["name"] == "thing-000"
    assert server.count("GET") == 4


def test_retry_after_is_honoured(server: FakeApiServer, cluster: Cluster) -> None:
    fill(server, 1)
    server.faults.append(respond_once(429, headers={"Retry-After": "1"}))
    began = time.monotonic()
    cluster.get(THINGS, "thing-000", "default")
    assert time.monotonic() - began >= 1


def test_retry_timeout_raises_unreachable_error(server: FakeApiServer, tmp_path: Path) -> None:
    fill(server, 1)
    server.faults.append(respond_once(503, times=1000))
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig"), retry_timeout=0.5)
    with pytest.raises(
        UnreachableError, match=r"cannot get things.example.com 'a' in namespace default: .* \(for 0.5 s\)"
    ):
        cluster.get(THINGS, "a", "default")


def test_internal_errors_are_not_retried(server: FakeApiServer, cluster: Cluster) -> None:
    server.faults.append(respond_once(500, reason="InternalError", times=100))
    with pytest.raises(ApiError, match="injected fault 500"):
        cluster.get(THINGS, "a", "default")
    assert server.count("GET") == 1


def test_reset_connections_are_retried(server: FakeApiServer, cluster: Cluster) -> None:
    fill(server, 1)
    cluster.list(THINGS, "default")
    server.faults.append(reset_once(method="GET"))
    assert cluster.get(THINGS, "thing-000", "default")
    server.faults.append(reset_once(method="PATCH", after=True))
    assert cluster.patch(THINGS, "thing-000", "default", {"spec": {"a": 1}})["spec"] == {"a": 1}


def test_broken_create_raises_uncertain_error(server: FakeApiServer, cluster: Cluster) -> None:
    cluster.list(THINGS, "default")
    server.faults.append(reset_once(method="POST", after=True))
    with pytest.raises(UncertainError):
        cluster.create(THINGS, {"metadata": {"name": "a"}}, "default")
    assert server.find(COLLECTION, "a") is not None
    assert server.count("POST") == 1


def test_unknown_server_is_not_retried(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = FakeApiServer()
        server.port = probe.getsockname()[1]
        cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig"), retry_timeout=300)
        began = time.monotonic()
        with pytest.raises(UnreachableError) as refused:
            cluster.get(PODS, "a", "default")
    assert time.monotonic() - began < 60
    assert f"the API server http://127.0.0.1:{server.port} of kubeconfig" in str(refused.value)
    assert "object at 0x" not in str(refused.value)


def test_known_server_is_retried_across_restart(server: FakeApiServer, cluster: Cluster) -> None:
    fill(server, 1)
    cluster.list(THINGS, "default")
    server.stop()
    threading.Timer(0.5, server.start).start()
    assert cluster.create(THINGS, {"metadata": {"name": "b"}}, "default")["metadata"]["name"] == "b"


def test_rejected_tokens_are_read_again(server: FakeApiServer, tmp_path: Path) -> None:
    fill(server, 1)
    token = tmp_path / "token"
    token.write_text("old")
    server.token = "old"
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig", {"tokenFile": str(token)}))
    cluster.list(THINGS, "default")
    server.token = "new"
    token.write_text("new")
    cluster.list(THINGS, "default")
    assert [item.token for item in server.requests] == ["old", "old", "new"]
    token.write_text("wrong")
    server.token = "other"
    with pytest.raises(UnauthorizedError, match="rejected these credentials\nLog in again"):
        cluster.list(THINGS, "default")


def test_exec_plugin_tokens_are_renewed(server: FakeApiServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        "token = pathlib.Path(__file__).with_name('token').read_text()\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': token}}))\n"
    )
    (tmp_path / "token").write_text("one")
    server.token = "one"
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig", user))
    cluster.list(THINGS, "default")
    server.token = "two"
    (tmp_path / "token").write_text("two")
    cluster.list(THINGS, "default")
    assert server.requests[-1].token == "two"


def test_failing_exec_plugin_raises_configuration_error(server: FakeApiServer, tmp_path: Path) -> None:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", "import sys; sys.exit('no ticket')"],
        }
    }
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig", user))
    with pytest.raises(ConfigurationError, match=r"credentials cannot be had: exec: process returned 1. no ticket"):
        cluster.list(THINGS, "default")
    assert server.requests == []


def test_default_namespace_is_that_of_context(cluster: Cluster, tmp_path: Path, server: FakeApiServer) -> None:
    assert cluster.namespace == "team"
    assert Cluster(server.write_kubeconfig(tmp_path / "other")).namespace == "default"


@pytest.mark.parametrize(
    ("text", "context", "message"),
    [
        (None, None, "no cluster is configured: .* does not exist"),
        ("a: [", None, "cannot be used: "),
        ("a: 1", None, "cannot be used: .*current-context"),
        ("", None, "cannot be used"),
        ("contexts: [{name: one}, {name: two}]", "three", "has no context 'three', only one, two"),
        (
            "current-context: one\ncontexts: [{name: one, context: {cluster: x}}]\nclusters: []",
            None,
            "cannot be used: ",
        ),
    ],
)
def test_invalid_kubeconfig(tmp_path: Path, text: str | None, context: str | None, message: str) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        _ = Cluster(file, context).namespace


def test_missing_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, pipe, missing = (tmp_path / name for name in ("folder", "pipe", "missing"))
    folder.mkdir()
    os.mkfifo(pipe)
    for value, found in {
        str(folder): f"{folder} is a directory",
        f"{missing}:{folder}:{pipe}": f"{missing} does not exist, {folder} is a directory, {pipe} is not a file",
    }.items():
        monkeypatch.setenv("KUBECONFIG", value)
        with pytest.raises(ConfigurationError) as caught:
            _ = Cluster().namespace
        assert caught.value.message == f"no cluster is configured: {found}"
        assert caught.value.hint.startswith("Set --kubeconfig or KUBECONFIG. ")


def test_kubeconfig_environment_variable(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "named", namespace="mine")))
    assert Cluster().namespace == "mine"
    second = yaml.safe_load((tmp_path / "named").read_text())
    second["contexts"][0].update(name="second", context={"cluster": "small", "user": "me", "namespace": "theirs"})
    (tmp_path / "second").write_text(yaml.safe_dump(second))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'named'}:{tmp_path / 'second'}")
    assert (Cluster().namespace, Cluster(context="second").namespace) == ("mine", "theirs")


def test_invalid_certificates_raise_configuration_error(server: FakeApiServer, tmp_path: Path) -> None:
    file = server.write_kubeconfig(tmp_path / "kubeconfig")
    (tmp_path / "ca.crt").write_text("no certificate")
    document = yaml.safe_load(file.read_text())
    document["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt"}
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigurationError, match="its certificates cannot be used"):
        Cluster(file).get(THINGS, "a")


def test_missing_extra_is_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for call in (lambda: cluster.namespace, lambda: cluster.get(THINGS, "a")):
        with pytest.raises(MissingExtraError, match="kubernetes"):
            call()


def test_service_account_of_pod(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("token", "of-the-pod"), ("namespace", "pods-own\n"), ("ca.crt", "x")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(config, "SERVICE_ACCOUNT_DIR", tmp_path)
    monkeypatch.setattr(config, "_DEFAULT_FILE", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.delenv("KUBECONFIG", raising=False)

    loaded = config.load_config()
    assert (loaded.namespace, loaded.source) == ("pods-own", "the pod's service account")
    assert loaded.server == f"https://127.0.0.1:{server.port}"
    assert loaded.get_authorization() == "Bearer of-the-pod"
    (tmp_path / "token").write_text("rotated")
    monkeypatch.setattr(config, "_TOKEN_SECONDS", 0.0)
    assert loaded.get_authorization() == "Bearer rotated"


@pytest.mark.parametrize("is_given", [True, False])
def test_unreachable_server_of_own_cluster_is_retried(
    is_given: bool, server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = dataclasses.replace(config.load_config(server.write_kubeconfig(tmp_path / "config")), is_given=is_given)
    monkeypatch.setattr(client, "load_config", lambda *_: loaded)
    server.put(THINGS.get_path("team"), {"metadata": {"name": "a"}})
    server.stop()
    if not is_given:
        with pytest.raises(UnreachableError):
            Cluster().get(THINGS, "a", "team")
        return
    refused = threading.Event()
    wait = AsyncClient._wait

    async def record(*arguments: Any) -> None:
        refused.set()
        await wait(*arguments)

    monkeypatch.setattr(AsyncClient, "_wait", record)

    def restart() -> None:
        refused.wait()
        server.start()

    threading.Thread(target=restart, daemon=True).start()
    assert Cluster().get(THINGS, "a", "team")["metadata"]["name"] == "a"


REQUEST = ApiRequest("create", "msjobs.mindspore.gitee.com", "a", "team")


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (404, b"404 page not found\n", NotInstalledError, "does not know msjobs.* operator install --image REGISTRY/NAME@sha256:…$"),  # noqa: E501
        (404, b'{"kind": "Status", "message": "x", "details": {"kind": "namespaces"}}', NotFoundError, "no such namespace.*create namespace team"),  # noqa: E501
        (404, b'{"kind": "Status", "message": "a not found", "details": {"kind": "msjobs"}}', NotFoundError, "a not found"),  # noqa: E501
        (403, b'{"kind": "Status", "message": "User \\"u\\" cannot create resource \\"msjobs\\""}', ForbiddenError, "not allowed to create msjobs.* in namespace team.* Role that allows the verb 'create'.*can-i create"),  # noqa: E501
        (403, b'{"kind": "Status", "message": "exceeded quota: pods"}', ForbiddenError, "exceeded quota: pods$"),
        (409, b'{"kind": "Status", "reason": "AlreadyExists"}', AlreadyExistsError, "exists already"),
        (409, b'{"kind": "Status", "reason": "Conflict", "message": "modified"}', ConflictError, "modified"),
        (422, b'{"kind": "Status", "message": "m", "details": {"causes": [{"field": "spec.a", "message": "Required value"}, {"field": "spec.a", "message": "Required value"}]}}', ValidationError, "is invalid: spec.a: Required value$"),  # noqa: E501
        (400, b'{"kind": "Status", "message": "strict decoding error"}', ValidationError, "strict decoding error"),
        (418, b"<html>teapot</html>", ApiError, "<html>teapot</html>"),
    ],
)  # fmt: skip
def test_responses_become_errors(status: int, body: bytes, kind: type[Exception], words: str) -> None:
    error = explain_response(REQUEST, status, parse_status(body))
    assert type(error) is kind
    with pytest.raises(kind, match=f"(?s){words}"):
        raise error
