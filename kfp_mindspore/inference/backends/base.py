"""What every backend of services can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from kfp_mindspore.inference.service import Service, ServiceStatus
from kfp_mindspore.local.lease import Lease


class ServingBackend(ABC):
    """Runs services; `InferenceClient` is the way to use one."""

    @abstractmethod
    def deploy(self, service: Service, *, wait_seconds: float, lease: Lease | None) -> ServiceStatus:
        """Start a service, or its new version, and return when it is ready.

        A new version takes the old one's place only once it is ready; when it fails, the old one is untouched.

        Args:
            service: What to serve.
            wait_seconds: Seconds to wait until it is ready.
            lease: The service ends when this lease is no longer held; None for one named by the environment, if any.

        Raises:
            UserError: The model or a field is wrong, or a port is taken.
            ProcessFailedError: Its server died; the last lines of its log are in the message.
            WaitTimeoutError: It was not ready in time.
        """

    @abstractmethod
    def get(self, name: str, namespace: str) -> ServiceStatus:
        """Return how a service is.

        Raises:
            NotFoundError: There is none of this name.
        """

    @abstractmethod
    def list(self, namespace: str | None) -> list[ServiceStatus]:
        """Return the services of a namespace, or of all when it is None, sorted by namespace and name."""

    @abstractmethod
    def read_logs(self, name: str, namespace: str, *, follow: bool, lines: int | None) -> Iterator[str]:
        """Yield the lines that the server printed.

        Args:
            name: Name of the service.
            namespace: Its namespace.
            follow: Whether to go on until the service is over.
            lines: How many of the lines so far at most; None for all.

        Raises:
            NotFoundError: There is none of this name.
        """

    @abstractmethod
    def stop(self, name: str, namespace: str) -> ServiceStatus:
        """End a service and wait until its processes are gone; it can still be described. Idempotent.

        Raises:
            NotFoundError: There is none of this name.
        """

    @abstractmethod
    def delete(self, name: str, namespace: str) -> None:
        """Stop a service and forget it.

        Raises:
            NotFoundError: There is none of this name.
        """
