"""The KServe backend; not implemented in this version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from kfp_mindspore.errors import UserError
from kfp_mindspore.inference.backends.base import ServingBackend
from kfp_mindspore.inference.service import Service, ServiceStatus
from kfp_mindspore.local.lease import Lease


@dataclass(frozen=True)
class KServeBackend(ServingBackend):
    """Configuration of the cluster that serves.

    Services on a cluster are not in this version, so every method raises a UserError. `build_inference_service` and
    `build_serving_runtime` make the manifests that kubectl applies.

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
            "services on a cluster are not in this version",
            hint="Serve on this machine: --backend local or KFP_MINDSPORE_BACKEND=local. For KServe on a cluster, "
            "apply with kubectl the YAML that `kfp-mindspore service runtime` prints, and the InferenceService that "
            "kfp_mindspore.inference.build_inference_service makes.",
        )
