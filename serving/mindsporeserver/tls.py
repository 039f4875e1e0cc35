"""TLS for REST and gRPC: certificates checked before the server starts, and read again when their files change.

cert-manager and the kubelet replace the files of a mounted certificate while the server runs. Both protocols look at
the files at each new connection (three calls of stat) and take what is there when it is whole and valid; otherwise they
go on with what they have and say so in the log, once.
"""

from __future__ import annotations

import datetime
import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError

if TYPE_CHECKING:
    import grpc
    from cryptography.x509 import Certificate

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TLSOptions:
    """The certificate of a server, and whom it asks for one.

    Args:
        certfile: PEM file with the certificate and the ones between it and the root.
        keyfile: PEM file with its private key, not encrypted.
        ca_certs: PEM file with the authorities whose certificates clients must show; None asks clients for nothing.
        prefix: What the flags begin with, `ssl` or `grpc_ssl`, for messages.
    """

    certfile: Path
    keyfile: Path
    ca_certs: Path | None = None
    prefix: str = "ssl"

    def uvicorn_options(self) -> dict[str, Any]:
        """Return the arguments of uvicorn.Config that serve HTTPS with these files.

        Raises:
            UserError: A file is missing or wrong, see `check_certificates`.
        """
        source = _Source(self)
        context = source.current_context()

        # Called at each handshake, whether the client names a server or not: the context then set is used for it.
        def refresh(connection: ssl.SSLSocket | ssl.SSLObject, _: str | None, __: ssl.SSLContext) -> None:
            connection.context = source.current_context()

        context.sni_callback = refresh
        return {"ssl_context_factory": lambda *_: context}


def check_certificates(
    certfile: Path | str | None,
    keyfile: Path | str | None,
    ca_certs: Path | str | None = None,
    *,
    prefix: str = "ssl",
) -> TLSOptions | None:
    """Check what the three flags of a protocol name.

    Args:
        certfile: Value of `--{prefix}_certfile`.
        keyfile: Value of `--{prefix}_keyfile`.
        ca_certs: Value of `--{prefix}_ca_certs`.
        prefix: `ssl` for REST, `grpc_ssl` for gRPC.

    Returns:
        The options, or None when no flag is set: plain text.

    Raises:
        UserError: Naming the flag, its file, what was found and what was expected.
    """
    if not (certfile or keyfile or ca_certs):
        return None
    pairs = (("certfile", certfile), ("keyfile", keyfile))
    given = [f"--{prefix}_{name}" for name, value in (*pairs, ("ca_certs", ca_certs)) if value]
    errors = [f"--{prefix}_{name}: must be set with {given[0]}, got nothing" for name, value in pairs if not value]
    if errors or not certfile or not keyfile:
        raise ValidationError(errors, hint="A server needs a certificate and its private key, as two PEM files.")
    options = TLSOptions(Path(certfile), Path(keyfile), Path(ca_certs) if ca_certs else None, prefix)
    _read(options)
    return options


def build_grpc_credentials(
    certfile: Path | str, keyfile: Path | str, ca_certs: Path | str | None = None
) -> grpc.ServerCredentials:
    """Return credentials of a gRPC server that follow their files.

    Args:
        certfile: PEM file with the server's certificate chain.
        keyfile: PEM file with its private key.
        ca_certs: PEM file with the authorities of clients; with it a client without a certificate is refused.

    Raises:
        UserError: A file is missing or wrong, see `check_certificates`.
    """
    import grpc

    options = TLSOptions(Path(certfile), Path(keyfile), Path(ca_certs) if ca_certs else None, "grpc_ssl")
    source = _Source(options)

    def configure(material: _Material) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(material.key, material.chain)], root_certificates=material.authorities
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        material = source.take_new()
        return configure(material) if material is not None else None

    return grpc.dynamic_ssl_server_credentials(
        configure(source.material), fetch, require_client_authentication=options.ca_certs is not None
    )


@dataclass(frozen=True)
class _Material:
    """The content of the files, checked."""

    chain: bytes
    key: bytes
    authorities: bytes | None
    expires: datetime.datetime


class _Source:
    """The newest valid content of the files; safe to ask from any thread.

    Args:
        options: Where they are.

    Raises:
        UserError: They are not valid now.
    """

    def __init__(self, options: TLSOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._seen = self._identify()
        self.material = _read(options)
        self._context: ssl.SSLContext | None = None

    def take_new(self) -> _Material | None:
        """Return what the files hold when they changed since the last call and are valid, else None."""
        with self._lock:
            return self._read_new()

    def current_context(self) -> ssl.SSLContext:
        """Return a context with the newest valid content; the same one while the files stay what they are."""
        with self._lock:
            if self._context is None:
                self._context = self._build_context()
            elif self._read_new() is not None:
                try:
                    self._context = self._build_context()
                except UserError as error:
                    _logger.error("TLS: %s; the certificate loaded before stays in use", error.message)
            return self._context

    def _read_new(self) -> _Material | None:
        identity = self._identify()
        if identity == self._seen:
            return None
        self._seen = identity
        try:
            material = _read(self._options)
        except UserError as error:
            _logger.error("TLS: %s; the certificate loaded before stays in use", error.message)
            return None
        self.material = material
        _logger.info("TLS: read %s again, valid until %s", self._options.certfile, _format(material.expires))
        return material

    def _identify(self) -> tuple[tuple[int, int, int] | None, ...]:
        options = self._options
        return tuple(
            _identify_file(path) for path in (options.certfile, options.keyfile, options.ca_certs) if path is not None
        )

    def _build_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        options = self._options
        try:
            # From files: the ssl module takes a key from nowhere else.
            context.load_cert_chain(options.certfile, options.keyfile, password=lambda: "")
        except OSError as error:
            raise UserError(
                f"--{options.prefix}_certfile: {options.certfile}: must be usable by OpenSSL, found: {error}"
            ) from None
        if self.material.authorities is not None:
            context.load_verify_locations(cadata=self.material.authorities.decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session would not show its certificate to the authorities of today.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
        return context


def _identify_file(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(options: TLSOptions) -> _Material:
    """Read and check the files.

    Raises:
        UserError: Naming flag and file.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    names = {name: f"--{options.prefix}_{name}" for name in ("certfile", "keyfile", "ca_certs")}
    chain = _read_file(names["certfile"], options.certfile)
    certificate = _parse_certificates(names["certfile"], options.certfile, chain)[0]
    _check_period(names["certfile"], options.certfile, certificate)
    key = _read_file(names["keyfile"], options.keyfile)
    private = _parse_key(names["keyfile"], options.keyfile, key)
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        raise UserError(
            f"{names['keyfile']}: {options.keyfile}: must be the private key of the certificate in {options.certfile} "
            f"({certificate.subject.rfc4514_string() or 'no subject'}), found another key",
        )
    authorities = None
    if options.ca_certs is not None:
        authorities = _read_file(names["ca_certs"], options.ca_certs)
        parsed = _parse_certificates(names["ca_certs"], options.ca_certs, authorities)
        authorities = b"".join(entry.public_bytes(Encoding.PEM) for entry in parsed)
        # One that has expired does no harm beside another that has not, as in the middle of a change of authority.
        _check_period(names["ca_certs"], options.ca_certs, max(parsed, key=lambda entry: entry.not_valid_after_utc))
    return _Material(chain, key, authorities, certificate.not_valid_after_utc)


def _read_file(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{flag}: {path}: must be a readable PEM file, found: {error.strerror}") from None


def _parse_certificates(flag: str, path: Path, data: bytes) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        raise UserError(
            f"{flag}: {path}: must hold certificates as PEM (-----BEGIN CERTIFICATE-----), found {_describe(data)}"
        ) from None


def _parse_key(flag: str, path: Path, data: bytes) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(data, password=None)
    except TypeError:
        raise UserError(
            f"{flag}: {path}: must be a private key without a passphrase, found an encrypted one",
            hint="Protect the file by its permissions or a Secret instead: openssl pkey -in KEY -out PLAIN_KEY",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(
            f"{flag}: {path}: must hold a private key as PEM (-----BEGIN PRIVATE KEY-----), found {_describe(data)}"
        ) from None


def _check_period(flag: str, path: Path, certificate: Certificate) -> None:
    now = datetime.datetime.now(datetime.timezone.utc)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise UserError(
            f"{flag}: {path}: must be valid now ({_format(now)}), found one that "
            + (f"expired at {_format(last)}" if now > last else f"is valid from {_format(first)}"),
            hint="Renew it; the server reads the files again by itself once it runs.",
        )


def _describe(data: bytes) -> str:
    """Say what a file is instead, without showing what may be a secret."""
    if not data.strip():
        return "an empty file"
    head = next((line for line in data.splitlines() if line.startswith(b"-----BEGIN ")), None)
    if head is not None:
        return f"{head.decode('ascii', 'replace')[:60]} that cannot be read"
    return "no PEM"


def _format(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
