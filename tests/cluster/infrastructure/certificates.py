"""Certificate authority of a cluster, its certificates and kubeconfig files."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kfp_mindspore.files import write_bytes

_DAYS = 30


class Authority:
    """Certificate authority in a directory: `ca.crt`, `ca.key` and issued certificates.

    Args:
        directory: The directory; an existing authority is loaded, otherwise one is created.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self._key_file = directory / "ca.key"
        if self._key_file.exists():
            self._key = serialization.load_pem_private_key(self._key_file.read_bytes(), password=None)
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("kfp-mindspore-test-ca")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            _begin(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        write_bytes(self.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        write_bytes(self._key_file, _to_pem(self._key), mode=0o600)

    def issue(
        self, file: str, name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Issue a certificate, as `<file>.crt` and `<file>.key`.

        Args:
            file: Name of the files.
            name: Common name, the user name for the API server.
            groups: Organizations, the groups for the API server.
            hosts: Names and addresses of a server; empty for a client.

        Returns:
            Paths of the certificate and the key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes()).subject
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _begin(_name(name, groups), issuer, key.public_key()).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_to_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = self.directory / f"{file}.crt", self.directory / f"{file}.key"
        write_bytes(paths[0], certificate.public_bytes(serialization.Encoding.PEM))
        write_bytes(paths[1], _to_pem(key), mode=0o600)
        return paths

    def write_kubeconfig(self, path: Path, url: str, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a new certificate for a user.

        Args:
            path: Path of the file.
            url: URL of the API server.
            user: The user's name.
            groups: The user's groups.
        """
        certificate, key = self.issue(path.stem, user, groups=groups)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": url, "certificate-authority-data": _encode(self.certificate)}}
            ],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate-data": _encode(certificate), "client-key-data": _encode(key)},
                }
            ],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user, "namespace": "default"}}],
            "current-context": "test",
        }
        write_bytes(path, yaml.safe_dump(config).encode(), mode=0o600)
        return path

    def make_service_account_keys(self) -> tuple[Path, Path]:
        """Create the key pair that signs service account tokens; return the paths of the private and public key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private, public = self.directory / "service-accounts.key", self.directory / "service-accounts.pub"
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        write_bytes(private, _to_pem(key), mode=0o600)
        write_bytes(public, key.public_key().public_bytes(serialization.Encoding.PEM, form))
        return private, public


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _name(common: str, groups: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _to_host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _to_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
