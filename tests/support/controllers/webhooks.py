"""Webhooks of controllers that run as processes beside a test cluster."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.infrastructure.api_server import ControlPlane


def get_address(cluster: ControlPlane) -> str:
    """Return the address of a cluster's API server, at which its controllers listen too."""
    return urlsplit(cluster.url).hostname or ""


def issue_certificate(cluster: ControlPlane, name: str) -> Path:
    """Issue the certificate of a controller's webhooks; return its TMPDIR, below which controller-runtime reads it."""
    directory = cluster.directory / name
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    files = cluster.authority.issue(f"{name}-webhooks", f"{name}-webhooks", hosts=[get_address(cluster)])
    for source, target in zip(files, ("tls.crt", "tls.key"), strict=True):
        shutil.copy(source, certificates / target)
    return directory


def locate_webhook(cluster: ControlPlane, configuration: dict[str, Any], port: int, name: str = "") -> dict[str, Any]:
    """Return a webhook configuration with the controller's address in place of its Service.

    Args:
        cluster: The cluster, in whose network the controller runs.
        configuration: As published.
        port: The controller's port.
        name: Name of the configuration; default the published one.
    """
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = build_client_config(cluster, port, path)
    return {**configuration, "metadata": {"name": name or configuration["metadata"]["name"]}}


def build_client_config(cluster: ControlPlane, port: int, path: str) -> dict[str, Any]:
    """Return how the API server reaches a path of a controller."""
    authority = base64.b64encode(cluster.authority.certificate.read_bytes()).decode()
    return {"url": f"https://{get_address(cluster)}:{port}{path}", "caBundle": authority}
