"""Webhooks of controllers that run as processes beside a test cluster."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

from tests.cluster.infrastructure.cluster import Cluster


def issue_certificate(cluster: Cluster, name: str) -> Path:
    """Issue the certificate of a controller's webhooks; return its TMPDIR, below which controller-runtime reads it."""
    directory = cluster.directory / name
    certificates = directory / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    files = cluster.authority.issue(f"{name}-webhooks", f"{name}-webhooks", hosts=[cluster.network.node])
    for source, target in zip(files, ("tls.crt", "tls.key"), strict=True):
        shutil.copy(source, certificates / target)
    return directory


def locate_webhook(cluster: Cluster, configuration: dict[str, Any], port: int, name: str = "") -> dict[str, Any]:
    """Return a webhook configuration with the controller's address in place of its Service.

    Args:
        cluster: The cluster, in whose node's network the controller runs.
        configuration: As published.
        port: The controller's port.
        name: Name of the configuration; default the published one.
    """
    authority = base64.b64encode(cluster.authority.certificate.read_bytes()).decode()
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": f"https://{cluster.network.node}:{port}{path}", "caBundle": authority}
    return {**configuration, "metadata": {"name": name or configuration["metadata"]["name"]}}
