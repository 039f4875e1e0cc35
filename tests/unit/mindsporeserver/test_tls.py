"""Certificates made here, real handshakes with uvicorn and grpc.aio servers."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kfp_mindspore.errors import UserError, ValidationError
from mindsporeserver.tls import TLSOptions, check_certificates

NOW = datetime.datetime.now(datetime.timezone.utc)
DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    certfile: Path
    keyfile: Path

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate(self.certfile.read_bytes()).serial_number


class Authority:
    """Signs certificates into a directory."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder().subject_name(self._name).issuer_name(self._name)
        builder = builder.public_key(self._key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(NOW - DAY).not_valid_after(NOW + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self.pem)

    def sign(
        self,
        name: str,
        *,
        first: datetime.datetime = NOW - DAY,
        last: datetime.datetime = NOW + DAY,
        passphrase: str = "",
    ) -> Certificate:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName(
            [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)
        signed = builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())
        made = Certificate(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        made.certfile.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        encryption: Any = serialization.NoEncryption()
        if passphrase:
            encryption = serialization.BestAvailableEncryption(passphrase.encode())
        made.keyfile.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_no_flag_is_plain_text() -> None:
    assert check_certificates(None, None) is None
    assert check_certificates("", "", "", prefix="grpc_ssl") is None


def test_complete_sets_are_accepted(authority: Authority) -> None:
    made = authority.sign("server")
    assert check_certificates(str(made.certfile), str(made.keyfile)) == TLSOptions(made.certfile, made.keyfile)
    options = check_certificates(made.certfile, made.keyfile, authority.file, prefix="grpc_ssl")
    assert options == TLSOptions(made.certfile, made.keyfile, authority.file)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("certfile", ["keyfile"]),
        ("keyfile", ["certfile"]),
        ("ca_certs", ["certfile", "keyfile"]),
    ],
)
def test_part_of_set_is_refused(given: str, missing: list[str]) -> None:
    values = {name: "/some/file" if name == given else None for name in ("certfile", "keyfile", "ca_certs")}
    with pytest.raises(ValidationError) as caught:
        check_certificates(**values, prefix="grpc_ssl")
    assert caught.value.errors == tuple(
        f"--grpc_ssl_{name}: must be set with --grpc_ssl_{given}, got nothing" for name in missing
    )


Spoil = Callable[[Authority, Certificate], None]


def spoil_key(authority: Authority, made: Certificate) -> None:
    made.keyfile.write_bytes(authority.sign("other").keyfile.read_bytes())


def encrypt_key(authority: Authority, made: Certificate) -> None:
    made.keyfile.write_bytes(authority.sign("other", passphrase="secret").keyfile.read_bytes())


def swap_files(_: Authority, made: Certificate) -> None:
    key = made.keyfile.read_bytes()
    made.keyfile.write_bytes(made.certfile.read_bytes())
    made.certfile.write_bytes(key)


@pytest.mark.parametrize(
    ("spoil", "flag", "file", "parts"),
    [
        pytest.param(
            lambda _, made: made.certfile.unlink(),
            "certfile", "server.crt", ["must be a readable PEM file", "No such file"], id="no certificate",
        ),
        pytest.param(lambda _, made: made.keyfile.unlink(), "keyfile", "server.key", ["No such file"], id="no key"),
        pytest.param(
            lambda authority, _: authority.file.unlink(), "ca_certs", "authority.pem", ["No such file"], id="no CA"
        ),
        pytest.param(
            lambda _, made: made.certfile.write_text(""), "certfile", "server.crt", ["an empty file"], id="empty"
        ),
        pytest.param(
            lambda _, made: made.keyfile.write_text("hello"), "keyfile", "server.key",
            ["must be the private key of the certificate", "as PEM"], id="no PEM"
        ),
        pytest.param(
            lambda authority, _: authority.file.write_text("x"), "ca_certs", "authority.pem",
            ["no certificate"], id="bad CA"
        ),
        pytest.param(swap_files, "certfile", "server.crt", ["found no certificate"], id="swapped"),
        pytest.param(spoil_key, "keyfile", "server.key",
            ["must be the private key of the certificate", "MISMATCH"], id="another key"),
        pytest.param(encrypt_key, "keyfile", "server.key", ["without a passphrase", "openssl pkey"], id="encrypted"),
        pytest.param(
            lambda authority, _: authority.sign("server", first=NOW - 2 * DAY, last=NOW - DAY),
            "certfile", "server.crt", ["must be valid now", "expired at"], id="expired",
        ),
        pytest.param(
            lambda authority, _: authority.sign("server", first=NOW + DAY, last=NOW + 2 * DAY),
            "certfile", "server.crt", ["must be valid now", "is valid from"], id="too early",
        ),
        pytest.param(
            lambda authority, made: authority.file.write_bytes(
                authority.sign("old", first=NOW - 2 * DAY, last=NOW - DAY).certfile.read_bytes()
            ),
            "ca_certs", "authority.pem", ["expired at"], id="expired authority",
        ),
    ],
)  # fmt: skip
def test_wrong_file_is_named(authority: Authority, spoil: Spoil, flag: str, file: str, parts: list[str]) -> None:
    made = authority.sign("server")
    spoil(authority, made)
    with pytest.raises(UserError) as caught:
        check_certificates(made.certfile, made.keyfile, authority.file, prefix="grpc_ssl")
    text = str(caught.value)
    assert text.startswith(f"--grpc_ssl_{flag}: {authority.file.parent / file}: must ")
    for part in parts:
        assert part in text
    assert "PRIVATE KEY-----\n" not in text


def request_https(port: int, ca: bytes, client: Certificate | None = None, name: str = "127.0.0.1") -> int:
    """Send a request over HTTPS; return the serial number of the server's certificate."""
    context = ssl.create_default_context(cadata=ca.decode())
    if client is not None:
        context.load_cert_chain(client.certfile, client.keyfile)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=name) as secure,
    ):
        # With TLS 1.3 a refused client learns of it only when it reads.
        secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = secure.recv(1000)
        if not received:
            raise ConnectionResetError("closed without an answer")
        assert received.startswith(b"HTTP/1.1 200")
        shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.mindspore
def test_server_with_certificates_on_both_ports(
    tmp_path: Path, authority: Authority, models: Path, start_server: Callable[..., Any]
) -> None:
    (tmp_path / "other").mkdir()
    rest, rpc, client = authority.sign("rest"), authority.sign("rpc"), authority.sign("client")
    stranger = Authority(tmp_path / "other", "stranger").sign("client")
    flags = [f"--ssl_certfile={rest.certfile}", f"--ssl_keyfile={rest.keyfile}", f"--ssl_ca_certs={authority.file}"]
    flags += [f"--grpc_ssl_certfile={rpc.certfile}", f"--grpc_ssl_keyfile={rpc.keyfile}"]
    flags += [f"--grpc_ssl_ca_certs={authority.file}", "--host=127.0.0.1"]
    server = start_server(models / "free", "digits", *flags)
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(client.certfile, client.keyfile)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"https://127.0.0.1:{server.port}/v2/health/ready", context=context, timeout=5)
            break
        time.sleep(0.05)
    else:
        pytest.fail(server.log.read_text()[-3000:])
    assert request_https(server.port, authority.pem, client) == rest.serial
    for refused in (None, stranger):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            request_https(server.port, authority.pem, refused)

    async def ask_live(shown: Certificate) -> bool:
        credentials = grpc.ssl_channel_credentials(
            authority.pem, shown.keyfile.read_bytes(), shown.certfile.read_bytes()
        )
        address, options = f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            # Its request is an empty message; its response has one field, true.
            return bool(await call(b"", timeout=10) == b"\x08\x01")

    assert asyncio.run(ask_live(client))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(ask_live(stranger))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_server_names_wrong_file(models: Path, start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(models / "free", "digits", f"--ssl_certfile={tmp_path / 'none'}", "--ssl_keyfile=x")
    assert server.process.wait(60) == 2
    assert server.log.read_text().startswith(f"Error: --ssl_certfile: {tmp_path / 'none'}: must be a readable PEM file")
