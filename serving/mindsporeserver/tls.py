"""TLS for HTTP and gRPC: certificates checked before the server starts.

Restart the pod to load a renewed certificate.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True)
class TLSOptions:
    """A server's certificate, and the clients' authorities.

    Args:
        certfile: PEM file with the certificate and the intermediate ones.
        keyfile: PEM file with the private key, not encrypted.
        ca_certs: PEM file with the authorities whose certificates clients must show; None requires no certificate.
    """

    certfile: Path
    keyfile: Path
    ca_certs: Path | None = None

    def uvicorn_options(self) -> dict[str, Any]:
        """Return the uvicorn.Config arguments that serve HTTPS with these files."""
        options: dict[str, Any] = {"ssl_certfile": self.certfile, "ssl_keyfile": self.keyfile}
        if self.ca_certs is not None:
            options |= {"ssl_ca_certs": str(self.ca_certs), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return a gRPC server's credentials with these files."""
        import grpc

        return grpc.ssl_server_credentials(
            [(self.keyfile.read_bytes(), self.certfile.read_bytes())],
            root_certificates=self.ca_certs.read_bytes() if self.ca_certs is not None else None,
            require_client_auth=self.ca_certs is not None,
        )


def check_certificates(
    certfile: Path | str | None,
    keyfile: Path | str | None,
    ca_certs: Path | str | None = None,
    *,
    prefix: str = "ssl",
) -> TLSOptions | None:
    """Check the files in a protocol's three flags.

    Args:
        certfile: `--{prefix}_certfile` value.
        keyfile: `--{prefix}_keyfile` value.
        ca_certs: `--{prefix}_ca_certs` value.
        prefix: `ssl` for HTTP, `grpc_ssl` for gRPC.

    Returns:
        The options, or None when no flag is set: plain text.

    Raises:
        UserError: Naming the flag, the file, what was found and what was expected.
    """
    if not (certfile or keyfile or ca_certs):
        return None
    pairs = (("certfile", certfile), ("keyfile", keyfile))
    given = [f"--{prefix}_{name}" for name, value in (*pairs, ("ca_certs", ca_certs)) if value]
    errors = [f"--{prefix}_{name}: must be set with {given[0]}, got nothing" for name, value in pairs if not value]
    if errors or not certfile or not keyfile:
        raise ValidationError(errors, hint="A server needs a certificate and its private key, as two PEM files.")
    options = TLSOptions(Path(certfile), Path(keyfile), Path(ca_certs) if ca_certs else None)
    _check_certificates(f"--{prefix}_certfile", options.certfile)
    _read(f"--{prefix}_keyfile", options.keyfile)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certfile, options.keyfile, password=_refuse_passphrase)
    except _EncryptedKeyError:
        raise UserError(
            f"--{prefix}_keyfile: {keyfile}: must be a private key without a passphrase, found an encrypted one",
            hint="Protect the file by its permissions or a Secret instead: openssl pkey -in KEY -out PLAIN_KEY",
        ) from None
    except OSError as error:
        raise UserError(
            f"--{prefix}_keyfile: {keyfile}: must be the private key of the certificate in {certfile}, as PEM, "
            f"found: {getattr(error, 'reason', None) or error}"
        ) from None
    if options.ca_certs is not None:
        _check_certificates(f"--{prefix}_ca_certs", options.ca_certs, is_bundle=True)
    return options


class _EncryptedKeyError(Exception):
    """OpenSSL needs a passphrase for a private key."""


def _refuse_passphrase() -> str:
    raise _EncryptedKeyError


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{flag}: {path}: must be a readable PEM file, found: {error.strerror}") from None


def _check_certificates(flag: str, path: Path, *, is_bundle: bool = False) -> None:
    """Check that a file holds certificates, and that the server's own, or at least one authority, is valid now."""
    from cryptography import x509

    data = _read(flag, path)
    try:
        certificates = x509.load_pem_x509_certificates(data)
    except ValueError:
        # Without showing what may be a secret.
        found = "an empty file" if not data.strip() else "no certificate"
        raise UserError(
            f"{flag}: {path}: must hold certificates as PEM (-----BEGIN CERTIFICATE-----), found {found}"
        ) from None
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    certificate = certificates[0]
    if is_bundle:
        # While the authority changes the file holds an expired one, too.
        certificate = max(certificates, key=lambda entry: entry.not_valid_after_utc)
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not first <= now <= last:
        raise UserError(
            f"{flag}: {path}: must be valid now ({now}), found one that "
            + (f"expired at {last}" if now > last else f"is valid from {first}"),
            hint="Renew it and start the server again.",
        )
