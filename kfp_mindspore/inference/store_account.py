"""The service account with which KServe's storage initializer reads bundles from an S3 store."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from kfp_mindspore.errors import NotFoundError
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import SECRETS, Resource

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
# KServe's storage initializer uses the account's Secret with these keys.
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_ANNOTATION_PREFIX = "serving.kserve.io/s3-"

Document = dict[str, Any]


def build_account(name: str, namespace: str) -> Document:
    """Return the service account, with a Secret with the same name."""
    return _make_document("ServiceAccount", name, namespace, secrets=[{"name": name}])


def build_secret(name: str, namespace: str, credentials: tuple[str, str], *, endpoint: str, region: str) -> Document:
    """Return the Secret: keys and annotations for KServe, and further keys for a server that downloads itself.

    Args:
        name: The Secret's name.
        namespace: The Secret's namespace.
        credentials: Access key and secret key.
        endpoint: Store URL; empty for AWS.
        region: Region; empty for the default.
    """
    scheme, _, host = endpoint.rpartition("://")
    notes = {"endpoint": host, "usehttps": "0" if scheme == "http" else "1", "region": region}
    # KServe's agent, which logs requests, else makes the bucket a part of the host name.
    notes["usevirtualbucket"] = "false" if endpoint else ""
    data = dict(zip(KEYS, credentials, strict=True)) | {"AWS_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": region}
    document = _make_document("Secret", name, namespace, type="Opaque")
    document["metadata"]["annotations"] = {f"{_ANNOTATION_PREFIX}{key}": note for key, note in notes.items() if note}
    document["data"] = {key: base64.b64encode(value.encode()).decode() for key, value in data.items() if value}
    return document


def get_secret_name(cluster: Cluster, account: str, namespace: str) -> str:
    """Return the account's Secret name with S3 credentials; empty without one.

    Raises:
        NotFoundError: The account does not exist.
        ForbiddenError: The caller may not read the account or the Secrets.
    """
    for reference in cluster.get(ACCOUNTS, account, namespace).get("secrets") or []:
        try:
            data: Mapping[str, str] = cluster.get(SECRETS, reference["name"], namespace).get("data") or {}
        except NotFoundError:
            continue
        if set(KEYS) <= data.keys():
            return str(reference["name"])
    return ""


def _make_document(kind: str, name: str, namespace: str, **content: object) -> Document:
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "kfp-mindspore"}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **content}
