"""Registry access: TLS, logins, tokens, and the errors without them."""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from kfp_mindspore.errors import UserError
from kfp_mindspore.images import AppendBuilder, ImageOptions, RegistryConfig, build_image
from kfp_mindspore.images.registry.credentials import get_credentials
from kfp_mindspore.images.registry.errors import CredentialsError, PermissionDeniedError
from kfp_mindspore.images.result import BuildResult
from kfp_mindspore.images.sources.context import BuildContext
from tests.cluster.infrastructure.certificates import Authority
from tests.support.http_server import Handler, Server
from tests.support.remote import base_images, registries

Build = Callable[..., BuildResult]


@dataclass(frozen=True)
class Certificates:
    """A certificate authority's file, and a server certificate of 127.0.0.1 with its key."""

    ca_file: Path
    cert_file: Path
    key_file: Path

    def load_key(self) -> Any:
        return serialization.load_pem_private_key(self.key_file.read_bytes(), password=None)

    def load_certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.cert_file.read_bytes())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Authority(tmp_path_factory.mktemp("authority"))
    return Certificates(made.certificate, *made.issue("registry", "registry", hosts=["127.0.0.1"]))


@pytest.fixture(scope="module")
def closed(authority: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[registries.Registry]:
    """Run a registry with TLS and a login."""
    registries.require_binary()
    tls = (authority.cert_file, authority.key_file)
    with registries.start_registry(tmp_path_factory.mktemp("closed"), tls=tls, htpasswd=True) as started:
        yield started


@pytest.fixture
def build(context: BuildContext) -> Build:
    def run(host: str, config: RegistryConfig, base: str) -> BuildResult:
        return build_image(context, f"{host}/team/train", ImageOptions(base), AppendBuilder(config))

    return run


def test_build_with_private_ca_and_login(
    closed: registries.Registry, authority: Certificates, build: Build, tmp_path: Path
) -> None:
    file = registries.write_login(tmp_path / "config.json", closed.host)
    config = RegistryConfig(ca_file=authority.ca_file, docker_config=file)
    base = base_images.push_base(closed.host, config=config)
    result = build(closed.host, config, base)
    assert closed.list_tags("team/train") == [result.tag]


def test_untrusted_certificate_is_refused(closed: registries.Registry, build: Build, tmp_path: Path) -> None:
    file = registries.write_login(tmp_path / "config.json", closed.host)
    with pytest.raises(UserError, match=f"the certificate of {closed.host} is not trusted") as caught:
        build(closed.host, RegistryConfig(docker_config=file), f"{closed.host}/team/base:1")
    assert "ca_file" in caught.value.hint


@pytest.mark.parametrize("login", ["none", "wrong"])
def test_missing_and_wrong_credentials_differ(
    closed: registries.Registry, authority: Certificates, build: Build, tmp_path: Path, login: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    if login == "wrong":
        registries.write_login(file, closed.host, password="hunter2")
    with pytest.raises(CredentialsError) as caught:
        build(closed.host, RegistryConfig(ca_file=authority.ca_file, docker_config=file), f"{closed.host}/team/base:1")
    said = "the password of 'reader' is refused" if login == "wrong" else "there are no valid credentials"
    assert said in str(caught.value)
    assert "401" in str(caught.value)
    assert f"docker login {closed.host}" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert base64.b64encode(b"reader:hunter2").decode() not in repr(caught.value.__context__)


def test_login_over_plain_http_needs_insecure(tmp_path: Path, build: Build) -> None:
    registries.require_binary()
    with registries.start_registry(tmp_path / "registry", htpasswd=True) as registry:
        file = registries.write_login(tmp_path / "config.json", registry.host)
        config = RegistryConfig(insecure=(registry.host,), docker_config=file)
        base = base_images.push_base(registry.host, config=config)
        assert build(registry.host, config, base).built
        with pytest.raises(UserError, match="is not trusted"):
            build(registry.host, RegistryConfig(docker_config=file), base)


class TokenServer(Server):
    """A token server: anonymous clients get pull permission only."""

    def __init__(self, authority: Certificates) -> None:
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        secure.load_cert_chain(authority.cert_file, authority.key_file)
        super().__init__(_TokenHandler, tls=secure)
        self.authority = authority
        self.asked: list[str] = []


class _TokenHandler(Handler):
    server: TokenServer

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        given = self.headers.get("Authorization", "")
        expected = f"Basic {base64.b64encode(f'{registries.USER}:{registries.PASSWORD}'.encode()).decode()}"
        if given not in ("", expected):
            self._answer(401, {"errors": [{"code": "UNAUTHORIZED", "message": "unauthorized"}]})
            return
        self._grant(query.get("scope", []), may_push=bool(given))

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        may_push = form["refresh_token"] == ["refreshing"] and form["grant_type"] == ["refresh_token"]
        self._grant(form["scope"][0].split(), may_push=may_push)

    def _grant(self, scopes: list[str], *, may_push: bool) -> None:
        self.server.asked += scopes
        access = []
        for scope in scopes:
            kind, name, actions = scope.split(":")
            granted = [action for action in actions.split(",") if action == "pull" or may_push]
            access.append({"type": kind, "name": name, "actions": granted})
        self._answer(200, {"token": self._make_token(access)})

    def _make_token(self, access: list[dict[str, Any]]) -> str:
        authority, now = self.server.authority, int(time.time())
        chain = base64.b64encode(authority.load_certificate().public_bytes(serialization.Encoding.DER)).decode()
        header = {"typ": "JWT", "alg": "ES256", "x5c": [chain]}
        claims = {"iss": "test", "sub": "", "aud": "registry", "nbf": now - 60, "exp": now + 600, "iat": now}
        parts = [_encode(json.dumps(part).encode()) for part in (header, {**claims, "jti": "1", "access": access})]
        signature = authority.load_key().sign(".".join(parts).encode(), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(signature)
        return ".".join([*parts, _encode(r.to_bytes(32, "big") + s.to_bytes(32, "big"))])

    def _answer(self, status: int, content: Any) -> None:
        self.respond(status, json.dumps(content).encode())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def issued(
    authority: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[registries.Registry, TokenServer]]:
    """Run a registry with token authentication, and its token server."""
    registries.require_binary()
    server = TokenServer(authority)
    token = {
        "realm": f"{server.url}/token?a=b",
        "service": "registry",
        "issuer": "test",
        "rootcertbundle": str(authority.ca_file),
    }
    tls = (authority.cert_file, authority.key_file)
    with registries.start_registry(tmp_path_factory.mktemp("issued"), tls=tls, token=token) as registry:
        yield registry, server
    server.close()


@pytest.mark.parametrize("kind", ["password", "identity token"])
def test_build_with_bearer_tokens(
    issued: tuple[registries.Registry, TokenServer], authority: Certificates, build: Build, tmp_path: Path, kind: str
) -> None:
    registry, server = issued
    file = registries.write_login(tmp_path / "config.json", registry.host)
    if kind == "identity token":
        file.write_text(json.dumps({"auths": {registry.host: {"identitytoken": "refreshing"}}}))
    config = RegistryConfig(ca_file=authority.ca_file, docker_config=file)
    base = base_images.push_base(registry.host, f"{kind[:8]}/base", config=config)
    result = build(registry.host, config, base)
    assert result.layers_sent in (0, 1)
    assert result.layers_reused in (2, 3)
    assert f"repository:{kind[:8]}/base:pull" in server.asked


def test_missing_push_permission_is_reported(
    issued: tuple[registries.Registry, TokenServer], authority: Certificates, build: Build, tmp_path: Path
) -> None:
    registry, _ = issued
    file = registries.write_login(tmp_path / "config.json", registry.host)
    base = base_images.push_base(
        registry.host, "denied/base", config=RegistryConfig(ca_file=authority.ca_file, docker_config=file)
    )
    file.write_text("{}")
    config = RegistryConfig(ca_file=authority.ca_file, docker_config=file)
    destination = f"{registry.host}/denied/train"
    context = BuildContext(())
    with pytest.raises(PermissionDeniedError, match="an anonymous user has no permission"):
        build_image(context, destination, ImageOptions(base), AppendBuilder(config))
    registries.write_login(file, registry.host, password="wrong")
    with pytest.raises(CredentialsError, match="the password of 'reader' is refused"):
        build_image(context, destination, ImageOptions(base), AppendBuilder(config))


def _write_helper(folder: Path, body: str) -> None:
    folder.mkdir(exist_ok=True)
    file = folder / "docker-credential-test"
    file.write_text(f"#!/bin/sh\nread host\n{body}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("section", ["credHelpers", "credsStore"])
def test_credential_helpers_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    _write_helper(tmp_path / "bin", r"""printf '{"Username": "u-%s", "Secret": "s"}' "$host" """)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({section: {"reg.io": "test"} if section == "credHelpers" else "test"}))
    found = get_credentials("reg.io", RegistryConfig(docker_config=file))
    assert found is not None
    assert (found.username, found.password) == ("u-reg.io", "s")
    assert "'s'" not in repr(found)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'credentials not found in native keychain'; exit 1", None),
        ("echo hunter2; exit 3", "helper docker-credential-test failed for reg.io"),
        ("echo hunter2", "helper docker-credential-test failed for reg.io"),
    ],
)
def test_failing_credential_helper_is_named_without_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str | None
) -> None:
    _write_helper(tmp_path / "bin", body)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "config.json").write_text('{"credsStore": "test"}')
    config = RegistryConfig(docker_config=tmp_path / "config.json")
    if reason is None:
        assert get_credentials("reg.io", config) is None
        return
    with pytest.raises(UserError, match=reason) as caught:
        get_credentials("reg.io", config)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "host", "user"),
    [
        ({"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cHc="}}}, "docker.io", "me"),
        ({"auths": {"https://reg.io/v2/": {"auth": "bWU6cHc="}}}, "reg.io", "me"),
        ({"HttpHeaders": {"X": "1"}}, "reg.io", None),
        ({"auths": {"reg.io": {}}}, "reg.io", None),
        ({"auths": {"reg.io:5000": {"auth": "bWU6cHc="}}}, "reg.io", None),
        ({}, "reg.io", None),
    ],
)
def test_logins_are_read_from_config_json(tmp_path: Path, content: Any, host: str, user: str | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    found = get_credentials(host, RegistryConfig(docker_config=tmp_path / "config.json"))
    assert (found.username if found else None) == user


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ('{"auths": {"reg.io": {"auth": "%%%"}}}', "the logins cannot be read for reg.io"),
        ('{"auths": {"reg.io": {"auth": "bWU="}}}', "the logins cannot be read for reg.io"),
        ('{"credsStore": "gone"}', "helper docker-credential-gone failed"),
        ('{"credsStore": "../../bin/sh"}', "helper docker-credential-../../bin/sh failed"),
    ],
)
def test_invalid_config_json_is_reported(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=reason):
        get_credentials("reg.io", RegistryConfig(docker_config=tmp_path / "config.json"))


def test_config_json_location_is_dockers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registries.write_login(tmp_path / "config.json", "reg.io")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    found = get_credentials("reg.io", RegistryConfig())
    assert found is not None
    assert found.username == registries.USER
    with pytest.raises(UserError, match="no such file"):
        get_credentials("reg.io", RegistryConfig(docker_config=tmp_path / "none.json"))
