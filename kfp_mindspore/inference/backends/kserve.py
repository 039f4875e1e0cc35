"""Services as KServe InferenceServices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from kfp_mindspore.errors import UserError
from kfp_mindspore.inference.backends.base import Backend
from kfp_mindspore.inference.service import Service, ServiceStatus
from kfp_mindspore.process import Lease


@dataclass(frozen=True)
class KServeBackend(Backend):
    """Configuration of the cluster that serves.

    `build_inference_service` writes the manifest today; applying it arrives with the Kubernetes backend, and until then
    every method raises a UserError.

    Args:
        context: Context of the kubeconfig; None for the current one or the pod's own account.
    """

    context: str | None = None

    def deploy(self, service: Service, *, wait_seconds: float, lease: Lease | None) -> ServiceStatus:
        """Raise UserError."""
        self._refuse()

    def get(self, name: str, namespace: str) -> ServiceStatus:
        """Raise UserError."""
        self._refuse()

    def list(self, namespace: str | None) -> list[ServiceStatus]:
        """Raise UserError."""
        self._refuse()

    def read_logs(self, name: str, namespace: str, *, follow: bool, lines: int | None) -> Iterator[str]:
        """Raise UserError."""
        self._refuse()

    def stop(self, name: str, namespace: str) -> ServiceStatus:
        """Raise UserError."""
        self._refuse()

    def delete(self, name: str, namespace: str) -> None:
        """Raise UserError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(
            "services on a cluster are not available in this version: they arrive with the Kubernetes backend",
            hint="Serve on this machine: --backend local or KFP_MINDSPORE_BACKEND=local. For a cluster, "
            "kfp_mindspore.inference.build_inference_service writes the manifest that kubectl applies.",
        )
