"""Certificates of a test cluster, used in real TLS."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from pathlib import Path

import pytest
import yaml

from tests.cluster.infrastructure.certificates import Authority


def shake_hands(server: tuple[Path, Path], client: tuple[Path, Path], authority: Path, name: str) -> dict[str, str]:
    """Return the subject that a server sees of a client."""
    inside = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority))
    inside.verify_mode = ssl.CERT_REQUIRED
    inside.load_cert_chain(*server)
    outside = ssl.create_default_context(cafile=str(authority))
    outside.load_cert_chain(*client)
    seen: list[dict[str, str]] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            with inside.wrap_socket(connection, server_side=True) as secure:
                certificate = secure.getpeercert() or {}
                seen.append({key: value for part in certificate["subject"] for key, value in part})
                secure.sendall(b"x")
        except ssl.SSLError:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        try:
            raw = socket.create_connection(listener.getsockname())
            with raw, outside.wrap_socket(raw, server_hostname=name) as secure:
                assert secure.recv(1) == b"x"
        finally:
            thread.join(20)
    return seen[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


def test_servers_and_users_are_known_to_each_other(authority: Authority) -> None:
    server = authority.issue("server", "kube-apiserver", hosts=["localhost", "127.0.0.1"])
    client = authority.issue("admin", "admin", groups=["system:masters"])
    for name in ("localhost", "127.0.0.1"):
        seen = shake_hands(server, client, authority.certificate, name)
        assert seen == {"organizationName": "system:masters", "commonName": "admin"}


def test_a_name_that_was_not_asked_for_is_refused(authority: Authority) -> None:
    server = authority.issue("server", "kube-apiserver", hosts=["localhost"])
    client = authority.issue("admin", "admin")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client, authority.certificate, "elsewhere")


def test_another_authority_is_a_stranger(authority: Authority, tmp_path: Path) -> None:
    server = authority.issue("server", "kube-apiserver", hosts=["localhost"])
    stranger = Authority(tmp_path).issue("admin", "admin")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        shake_hands(server, stranger, authority.certificate, "localhost")


def test_an_authority_that_is_there_is_read_again(authority: Authority) -> None:
    server = authority.issue("server", "kube-apiserver", hosts=["localhost"])
    client = Authority(authority.directory).issue("late", "late")
    assert shake_hands(server, client, authority.certificate, "localhost") == {"commonName": "late"}


def test_a_kubeconfig_carries_all_that_it_needs(authority: Authority, tmp_path: Path) -> None:
    path = authority.write_kubeconfig(tmp_path / "reader.kubeconfig", "https://127.0.0.1:6443", "reader", ["readers"])
    assert path.stat().st_mode & 0o777 == 0o600
    config = yaml.safe_load(path.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert base64.b64decode(config["users"][0]["user"]["client-key-data"]).startswith(b"-----BEGIN PRIVATE KEY")


def test_keys_are_private(authority: Authority) -> None:
    private, public = authority.make_service_account_keys()
    assert private.stat().st_mode & 0o777 == 0o600
    assert public.read_bytes().startswith(b"-----BEGIN PUBLIC KEY")
