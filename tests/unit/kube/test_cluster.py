"""Verbs against a server that fails in every way that a cluster does."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from kfp_mindspore.errors import AlreadyExistsError, NotFoundError, ValidationError
from kfp_mindspore.kube import (
    PODS,
    ApiError,
    Cluster,
    ConfigurationError,
    ConflictError,
    ForbiddenError,
    NotInstalledError,
    Resource,
    UnauthorizedError,
    UncertainError,
    UnreachableError,
)
from kfp_mindspore.kube.errors import Request, explain_answer, read_status
from tests.support.small_api_server import SmallApiServer, answer_once, reset_once

THINGS = Resource("example.com", "v1", "things", "Thing")
COLLECTION = THINGS.locate("default")


def fill(server: SmallApiServer, count: int) -> None:
    for number in range(count):
        server.put(COLLECTION, {"metadata": {"name": f"thing-{number:03}"}})


def test_paths() -> None:
    assert PODS.locate("a", "b", "log") == "/api/v1/namespaces/a/pods/b/log"
    assert THINGS.locate() == "/apis/example.com/v1/things"
    assert THINGS.locate("a b", "../c") == "/apis/example.com/v1/namespaces/a%20b/things/..%2Fc"


def test_a_list_is_read_page_by_page(server: SmallApiServer, cluster: Cluster) -> None:
    fill(server, 7)
    items, version = cluster.list_with_version(THINGS, "default", page=3)
    assert [item["metadata"]["name"] for item in items] == [f"thing-{number:03}" for number in range(7)]
    assert version == str(server.version)
    assert server.count("GET", "things") == 3


def test_a_page_that_has_expired_starts_the_list_anew(server: SmallApiServer, cluster: Cluster) -> None:
    fill(server, 7)
    expired = answer_once(410, reason="Expired")
    server.troubles.append(lambda asked, handler: "continue" in asked.query and expired(asked, handler))
    items, _ = cluster.list_with_version(THINGS, "default", page=3)
    assert len(items) == 7
    assert "limit" not in server.asked[-1].query


@pytest.mark.parametrize(
    ("status", "headers"), [(429, {"Retry-After": "0"}), (503, {}), (502, {}), (504, {}), (500, {"Retry-After": "0"})]
)
def test_troubles_that_pass_are_waited_out(
    server: SmallApiServer, cluster: Cluster, status: int, headers: dict[str, str]
) -> None:
    fill(server, 1)
    server.troubles.append(answer_once(status, headers=headers, times=3))
    assert cluster.get(THINGS, "thing-000", "default")["metadata"]["name"] == "thing-000"
    assert server.count("GET") == 4


def test_the_server_says_how_long_to_wait(server: SmallApiServer, cluster: Cluster) -> None:
    fill(server, 1)
    server.troubles.append(answer_once(429, headers={"Retry-After": "1"}))
    began = time.monotonic()
    cluster.get(THINGS, "thing-000", "default")
    assert time.monotonic() - began >= 1


def test_trouble_that_does_not_pass_ends_in_words(server: SmallApiServer, tmp_path: Path) -> None:
    fill(server, 1)
    server.troubles.append(answer_once(503, times=1000))
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig"), patience=0.5)
    with pytest.raises(
        UnreachableError, match=r"cannot get things.example.com 'a' in namespace default: .* \(for 0.5 s\)"
    ):
        cluster.get(THINGS, "a", "default")


def test_an_error_of_the_server_is_told_at_once(server: SmallApiServer, cluster: Cluster) -> None:
    server.troubles.append(answer_once(500, reason="InternalError", times=100))
    with pytest.raises(ApiError, match="told to answer 500"):
        cluster.get(THINGS, "a", "default")
    assert server.count("GET") == 1


def test_a_reset_connection_is_tried_again(server: SmallApiServer, cluster: Cluster) -> None:
    fill(server, 1)
    cluster.list(THINGS, "default")
    server.troubles.append(reset_once(method="GET"))
    assert cluster.get(THINGS, "thing-000", "default")
    server.troubles.append(reset_once(method="PATCH", after=True))
    assert cluster.patch(THINGS, "thing-000", "default", {"spec": {"a": 1}})["spec"] == {"a": 1}


def test_nobody_knows_whether_a_broken_creation_came_through(server: SmallApiServer, cluster: Cluster) -> None:
    cluster.list(THINGS, "default")
    server.troubles.append(reset_once(method="POST", after=True))
    with pytest.raises(UncertainError):
        cluster.create(THINGS, {"metadata": {"name": "a"}}, "default")
    assert server.find(COLLECTION, "a") is not None
    assert server.count("POST") == 1


def test_a_server_that_never_answered_is_given_up_at_once(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = SmallApiServer()
        server.port = probe.getsockname()[1]
        cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig"), patience=300)
        began = time.monotonic()
        with pytest.raises(UnreachableError) as refused:
            cluster.get(PODS, "a", "default")
    assert time.monotonic() - began < 60
    assert f"the API server http://127.0.0.1:{server.port} of kubeconfig" in str(refused.value)
    assert "object at 0x" not in str(refused.value)


def test_a_server_that_has_answered_is_waited_for(server: SmallApiServer, cluster: Cluster) -> None:
    fill(server, 1)
    cluster.list(THINGS, "default")
    server.stop()
    threading.Timer(0.5, server.start).start()
    assert cluster.create(THINGS, {"metadata": {"name": "b"}}, "default")["metadata"]["name"] == "b"


def test_a_token_that_is_not_taken_any_more_is_read_again(server: SmallApiServer, tmp_path: Path) -> None:
    fill(server, 1)
    token = tmp_path / "token"
    token.write_text("old")
    server.token = "old"
    cluster = Cluster(server.write_kubeconfig(tmp_path / "kubeconfig", {"tokenFile": str(token)}))
    cluster.list(THINGS, "default")
    server.token = "new"
    token.write_text("new")
    cluster.list(THINGS, "default")
    assert [item.token for item in server.asked] == ["old", "old", "new"]
    token.write_text("wrong")
    server.token = "other"
    with pytest.raises(UnauthorizedError, match="does not take these credentials\nLog in again"):
        cluster.list(THINGS, "default")


def test_an_exec_plugin_gives_the_token(server: SmallApiServer, tmp_path: Path) -> None:
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
    assert server.asked[-1].token == "two"


def test_an_exec_plugin_that_fails_is_told(server: SmallApiServer, tmp_path: Path) -> None:
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
    assert server.asked == []


def test_the_namespace_is_that_of_the_context(cluster: Cluster, tmp_path: Path, server: SmallApiServer) -> None:
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
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str | None, context: str | None, message: str) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        _ = Cluster(file, context).namespace


def test_where_a_kubeconfig_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert caught.value.hint.startswith("Choose one with --kubeconfig or KUBECONFIG. ")


def test_the_environment_names_the_kubeconfig(
    server: SmallApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "named", namespace="mine")))
    assert Cluster().namespace == "mine"
    second = yaml.safe_load((tmp_path / "named").read_text())
    second["contexts"][0].update(name="second", context={"cluster": "small", "user": "me", "namespace": "theirs"})
    (tmp_path / "second").write_text(yaml.safe_dump(second))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'named'}:{tmp_path / 'second'}")
    assert (Cluster().namespace, Cluster(context="second").namespace) == ("mine", "theirs")


def test_in_a_pod_it_is_the_pods_account(
    server: SmallApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kubernetes.config import incluster_config

    from kfp_mindspore.kube import configuration

    for name, text in (("token", "of-the-pod"), ("namespace", "pods-own\n"), ("ca.crt", "x")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(configuration, "ACCOUNT", tmp_path)
    monkeypatch.setattr(configuration, "_DEFAULT_FILE", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    access = Cluster().connection.access
    assert (access.namespace, access.source) == ("pods-own", "the pod's service account")
    assert access.configuration.host == f"https://127.0.0.1:{server.port}"
    assert access.configuration.api_key["authorization"].endswith("of-the-pod")


REQUEST = Request("create", "msjobs.mindspore.gitee.com", "a", "team")


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
def test_answers_become_errors(status: int, body: bytes, kind: type[Exception], words: str) -> None:
    error = explain_answer(REQUEST, status, read_status(body))
    assert type(error) is kind
    with pytest.raises(kind, match=f"(?s){words}"):
        raise error
