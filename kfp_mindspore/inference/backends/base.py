"""The service backend interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from kfp_mindspore.inference.service import Service, ServiceStatus
from kfp_mindspore.local.lease import Lease


class ServingBackend(ABC):
    """Runs services; users call them through InferenceClient."""

    @property
    def default_namespace(self) -> str:
        """The namespace for services without one."""
        return "default"

    @abstractmethod
    def deploy(self, service: Service, *, wait_seconds: float, lease: Lease | None, canary: int = 0) -> ServiceStatus:
        """Start a service, a new version or a canary, and return when it is ready.

        A new version replaces the old one once it is ready; when it fails, the old one keeps running.

        Args:
            service: The service.
            wait_seconds: Seconds to wait until it is ready.
            lease: The service ends when this lease is no longer held; None for one named by the environment, if any.
            canary: Percentage of requests for a canary; 0 for a new version. A service that does not exist yet or is
                stopped gets the first version.

        Raises:
            UserError: The model or a field is wrong, a port is taken, or the service has a canary and `canary` is 0.
            ProcessFailedError: The server terminated; the message has the log's last lines.
            WaitTimeoutError: It was not ready before the timeout.
        """

    @abstractmethod
    def promote(self, name: str, namespace: str, *, wait_seconds: float) -> ServiceStatus:
        """Deploy the canary's model as the service's next version, wait until it serves, and remove the canary.

        Raises:
            NotFoundError: The service does not exist.
            UserError: It has no canary.
            ProcessFailedError: The version does not start; service and canary are as before.
            WaitTimeoutError: It was not ready before the timeout; the same.
        """

    @abstractmethod
    def rollback(self, name: str, namespace: str, *, wait_seconds: float) -> ServiceStatus:
        """Remove the canary; without one, deploy the previous version's model as the next version.

        Raises:
            NotFoundError: The service does not exist.
            UserError: It has neither a canary nor a version before.
            ProcessFailedError: The version does not start; the service is as before.
            WaitTimeoutError: It was not ready before the timeout; the same.
        """

    @abstractmethod
    def update(self, name: str, namespace: str, changes: Mapping[str, Any], *, wait_seconds: float) -> ServiceStatus:
        """Deploy the serving model with other options as the next version, and return when it is ready.

        Args:
            name: Service name.
            namespace: Service namespace.
            changes: `Service` fields to replace.
            wait_seconds: Seconds to wait until it is ready.

        Raises:
            NotFoundError: The service does not exist.
            UserError: A field is wrong, or the service has a canary.
            ProcessFailedError: The version does not start; the service is as before.
            WaitTimeoutError: It was not ready before the timeout; the same.
        """

    @abstractmethod
    def get(self, name: str, namespace: str) -> ServiceStatus:
        """Return a service's status.

        Raises:
            NotFoundError: The service does not exist.
        """

    @abstractmethod
    def list(self, namespace: str | None) -> list[ServiceStatus]:
        """Return the services in a namespace, or in all when it is None, sorted by namespace and name."""

    @abstractmethod
    def read_logs(self, name: str, namespace: str, *, follow: bool, lines: int | None) -> Iterator[str]:
        """Yield a service's log lines.

        Args:
            name: Service name.
            namespace: Service namespace.
            follow: Whether to continue until the service is finished.
            lines: Maximum number of existing lines; None for all.

        Raises:
            NotFoundError: The service does not exist.
        """

    @abstractmethod
    def stop(self, name: str, namespace: str) -> ServiceStatus:
        """Stop a service and wait until the processes are gone; status and log are kept. Idempotent.

        Raises:
            NotFoundError: The service does not exist.
        """

    @abstractmethod
    def delete(self, name: str, namespace: str) -> None:
        """Stop a service and delete all state.

        Raises:
            NotFoundError: The service does not exist.
        """
