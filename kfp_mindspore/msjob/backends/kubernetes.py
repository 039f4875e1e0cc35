"""The backend that submits MSJobs to a cluster. This version only refuses it, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kfp_mindspore.errors import UserError
from kfp_mindspore.msjob.backends.base import Backend, Event, Pod
from kfp_mindspore.msjob.types import MSJob


@dataclass(frozen=True)
class KubernetesBackend(Backend):
    """Jobs on a cluster.

    Args:
        namespace: Namespace of the jobs.
    """

    namespace: str = "default"

    def create(self, job: MSJob) -> MSJob:
        """Refuse."""
        self._refuse()

    def get(self, name: str, namespace: str) -> MSJob:
        """Refuse."""
        self._refuse()

    def list_jobs(self, namespace: str) -> list[MSJob]:
        """Refuse."""
        self._refuse()

    def update(self, name: str, namespace: str, patch: dict[str, Any]) -> MSJob:
        """Refuse."""
        self._refuse()

    def delete(self, name: str, namespace: str, *, grace_seconds: float | None = None) -> None:
        """Refuse."""
        self._refuse()

    def list_pods(self, name: str, namespace: str) -> Sequence[Pod]:
        """Refuse."""
        self._refuse()

    def list_events(self, name: str, namespace: str) -> Sequence[Event]:
        """Refuse."""
        self._refuse()

    def read_log(self, name: str, namespace: str, pod: str, *, last: int | None = None) -> str:
        """Refuse."""
        self._refuse()

    def follow_logs(
        self, name: str, namespace: str, choose: Callable[[Pod], bool], *, timeout: float | None = None
    ) -> Iterator[tuple[str, str]]:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(
            "jobs on Kubernetes are not available in this version",
            hint="Use the local backend: --backend local, KFP_MINDSPORE_BACKEND=local or MSJobClient(LocalBackend()).",
        )
