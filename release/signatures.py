"""Signatures by a key on the curve P-256, of files and images, in cosign's formats."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.registry.blob import BytesBlob
from kfp_mindspore.images.registry.manifest import OCI_MANIFEST, make_manifest
from release.layout import TAG, Layout

KIND = "kind"
IMAGE_KIND = "dev.cosignproject.cosign/image"
STATEMENT_TYPE = "application/vnd.in-toto+json"
_SIGNATURES_KIND = "dev.cosignproject.cosign/sigs"
_ATTESTATIONS_KIND = "dev.cosignproject.cosign/atts"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
_ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_ALGORITHM = ec.ECDSA(hashes.SHA256())
_Layer = tuple[str, bytes, dict[str, str]]


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a private key on the curve P-256, a PEM file without a password.

    Raises:
        UserError: The file cannot be read, or is no such key.
    """
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"KEY: {path}: must be a PEM file of a private key without a password: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UserError(
            f"KEY: {path}: must be a key on the curve P-256", hint="openssl ecparam -genkey -name prime256v1"
        )
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the public key in a PEM file.

    Raises:
        UserError: The file cannot be read, or is no such key.
    """
    content = _read(path)
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"KEY: {path}: must be a PEM file of a public key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"KEY: {path}: must be a key on the curve P-256")
    return key


def sign(key: ec.EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Return the signature of a file as `cosign sign-blob` writes it: ECDSA of its SHA-256 digest, in base64."""
    return base64.b64encode(key.sign(content, _ALGORITHM))


def sign_image(
    layout: Layout, image: Mapping[str, Any], statements: Iterable[Mapping[str, Any]], key: ec.EllipticCurvePrivateKey
) -> list[dict[str, Any]]:
    """Store an image's signature and attestations, and return their manifests' descriptors.

    Args:
        layout: The image's layout.
        image: The image's descriptor.
        statements: in-toto statements to attest.
        key: The key.
    """
    critical = {
        "identity": {"docker-reference": ""},
        "image": {"docker-manifest-digest": image["digest"]},
        "type": "cosign container image signature",
    }
    payload = _encode({"critical": critical, "optional": None})
    layers = [(_PAYLOAD_TYPE, payload, {_SIGNATURE: sign(key, payload).decode()})]
    signatures = _add(layout, image["digest"], ".sig", _SIGNATURES_KIND, layers)
    layers = []
    for statement in statements:
        content = _encode(statement)
        signature = sign(key, _encode_for_signature(STATEMENT_TYPE, content)).decode()
        envelope = {
            "payloadType": STATEMENT_TYPE,
            "payload": base64.b64encode(content).decode(),
            "signatures": [{"keyid": "", "sig": signature}],
        }
        annotations = {_SIGNATURE: "", "predicateType": str(statement["predicateType"])}
        layers.append((_ENVELOPE_TYPE, _encode(envelope), annotations))
    return [signatures, _add(layout, image["digest"], ".att", _ATTESTATIONS_KIND, layers)]


def verify_image(layout: Layout, key: ec.EllipticCurvePublicKey) -> None:
    """Verify the signature and the attestations of a layout's image.

    Raises:
        UserError: They are missing, of another image or by another key.
    """
    (image,) = _list_kind(layout, IMAGE_KIND)
    found = [*_list_kind(layout, _SIGNATURES_KIND), *_list_kind(layout, _ATTESTATIONS_KIND)]
    if not found:
        raise UserError(f"{layout.root}: is not signed", hint="make release VERSION=… BASE=… KEY=…")
    for descriptor in found:
        for layer in layout.get_manifest(descriptor).fields["layers"]:
            content = layout.read(layer["digest"])
            fields = json.loads(content)
            if layer["mediaType"] == _ENVELOPE_TYPE:
                statement = base64.b64decode(fields["payload"])
                content = _encode_for_signature(fields["payloadType"], statement)
                signature, what = fields["signatures"][0]["sig"], "attestation"
                signed = f"sha256:{json.loads(statement)['subject'][0]['digest']['sha256']}"
            else:
                signature, what = layer["annotations"][_SIGNATURE], "signature"
                signed = fields["critical"]["image"]["docker-manifest-digest"]
            try:
                key.verify(base64.b64decode(signature), content, _ALGORITHM)
            except InvalidSignature:
                raise UserError(
                    f"{layout.root}: the {what} is not by this key, or was changed", hint="Check --key."
                ) from None
            if signed != image["digest"]:
                raise UserError(f"{layout.root}: the {what} is of another image, {signed}, not of {image['digest']}")


def _list_kind(layout: Layout, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in layout.manifests if entry.get("annotations", {}).get(KIND) == kind]


def _add(layout: Layout, digest: str, suffix: str, kind: str, layers: Sequence[_Layer]) -> dict[str, Any]:
    blobs = [BytesBlob(content) for _, content, _ in layers]
    rootfs = {"type": "layers", "diff_ids": [blob.digest for blob in blobs]}
    configuration = BytesBlob(_encode({"architecture": "", "os": "", "config": {}, "rootfs": rootfs}))
    fields = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": {"mediaType": _CONFIG_TYPE, **layout.add(configuration)},
        "layers": [
            {"mediaType": kind, **layout.add(blob), "annotations": annotations}
            for blob, (kind, _, annotations) in zip(blobs, layers, strict=True)
        ],
    }
    annotations = {TAG: digest.replace(":", "-") + suffix, KIND: kind}
    return layout.add_manifest(make_manifest(fields), annotations=annotations)


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _encode_for_signature(kind: str, content: bytes) -> bytes:
    """Return the bytes that DSSE signs."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(content), content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"KEY: {path}: {error.strerror}") from None
