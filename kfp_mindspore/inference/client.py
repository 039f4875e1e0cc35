"""The service client, with the same methods for all backends."""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import KfpMindSporeError, ProcessFailedError, UserError, ValidationError, WaitTimeoutError
from kfp_mindspore.inference.backends.base import ServingBackend
from kfp_mindspore.inference.predict import predict
from kfp_mindspore.inference.service import DeploymentOptions, Service, ServiceStatus, list_service_errors
from kfp_mindspore.local.lease import Lease
from kfp_mindspore.options import check_values
from kfp_mindspore.settings import BACKEND_VARIABLE, KSERVE, KUBERNETES, LOCAL, get_backend_name

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from pandas import DataFrame

    from kfp_mindspore.inference.canary import CanaryReport

_LAST_LINES = 15
_POLL_SECONDS = 0.1


class InferenceClient:
    """A client for services.

    Args:
        backend: Where they run: `local`, `kubernetes` or a backend's configuration, such as
            `LocalServingBackend()`; default `KFP_MINDSPORE_BACKEND`, else
            `kubernetes` in a pod and `local` anywhere else.
        namespace: Default namespace for calls; default the backend's: on a cluster the kubeconfig context's or the
            pod's.
    """

    def __init__(self, backend: ServingBackend | str | None = None, namespace: str | None = None) -> None:
        self.backend = backend if isinstance(backend, ServingBackend) else create_serving_backend(backend)
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        """Default namespace for calls."""
        return self._namespace or self.backend.default_namespace

    def deploy(
        self, service: Service, wait_seconds: float = 120, lease: Lease | None = None, *, canary: int = 0
    ) -> ServiceStatus:
        """Start a service, a new version or a canary, and return when it is ready.

        A new version replaces the old one once it is ready; when it fails, the old one keeps running. A canary runs
        beside it: requests to `status.canary.traffic_url` are split, and `promote` or `rollback` ends it.

        Args:
            service: The service.
            wait_seconds: Seconds to wait until it is ready.
            lease: The service is terminated when this lease is released; default the enclosing run's lease, if any;
                without effect on a cluster.
            canary: Percentage of requests for a canary, 1 to 99; 0 for a new version. A service that does not exist yet
                or is stopped gets the first version, and no canary.

        Returns:
            The service's status, with addresses.

        Raises:
            UserError: The model or a field is wrong, a port is taken, or the service has a canary and `canary` is 0;
                nothing has changed.
            ProcessFailedError: The server terminated; the message has the log's last lines.
            WaitTimeoutError: It was not ready before the timeout.
        """
        service = replace(service, namespace=service.namespace or self.namespace)
        service.validate()
        check_values(DeploymentOptions, {"canary": canary}, subject=f"service {service.name}")
        # No span: nearly all the time is the server's start-up, which a run counts as overhead.
        return self.backend.deploy(service, wait_seconds=wait_seconds, lease=lease, canary=canary)

    def update(
        self, name: str, changes: Mapping[str, Any], wait_seconds: float = 120, namespace: str | None = None
    ) -> ServiceStatus:
        """Deploy a service's present model with other options as its next version, and wait until it serves.

        Args:
            name: Service name.
            changes: `Service` fields to replace, such as {"max_replicas": 4}.
            wait_seconds: Seconds to wait until it serves.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
            UserError: A field is wrong, or the service has a canary.
            ProcessFailedError: The version does not start; the service is as before.
            WaitTimeoutError: It was not ready before the timeout; the same.
        """
        check_values(Service, changes, subject=f"service {name}")
        return self.backend.update(*self._check(name, namespace), changes, wait_seconds=wait_seconds)

    def promote(self, name: str, wait_seconds: float = 120, namespace: str | None = None) -> ServiceStatus:
        """Deploy the canary's model as the service's next version, wait until it serves, and remove the canary.

        Args:
            name: Service name.
            wait_seconds: Seconds to wait until it serves.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
            UserError: It has no canary.
            ProcessFailedError: The version does not start; service and canary are as before.
            WaitTimeoutError: It was not ready before the timeout; the same.
        """
        return self.backend.promote(*self._check(name, namespace), wait_seconds=wait_seconds)

    def finish_canary(
        self,
        name: str,
        bundle_dir: Path | str,
        *,
        max_worsening: float = 0.0,
        wait_seconds: float = 120,
        namespace: str | None = None,
    ) -> tuple[ServiceStatus, CanaryReport]:
        """Test a canary against the bundle and against the service, then promote it, or roll it back and raise.

        Args:
            name: Service name.
            bundle_dir: The canary's bundle, a directory on this machine, whose held-out samples are sent to both.
            max_worsening: Largest worsening allowed in the task's default metric on the bundle's samples, in its units.
            wait_seconds: Seconds to wait until the promoted version serves.
            namespace: Service namespace; default the client's.

        Returns:
            The promoted version's status, and the test result.

        Raises:
            NotFoundError: The service does not exist.
            UserError: It has no canary; or, after a rollback, the bundle is damaged or has no samples.
            ProcessFailedError: A prediction differs from the bundle's, or the promoted version does not start.
            GateNotMetError: The canary's metric is worse than the service's.
            WaitTimeoutError: The promoted version was not ready before the timeout.
        """
        from kfp_mindspore.inference.canary import run_canary_test

        status = self.get(name, namespace)
        if status.canary is None:
            raise UserError(f"service {name}: has no canary")
        try:
            report = run_canary_test(status, bundle_dir, max_worsening=max_worsening)
            return self.promote(name, wait_seconds, namespace), report
        except KfpMindSporeError as error:
            outcome = f"The canary was rolled back; version {status.version} serves on."
            try:
                self.rollback(name, wait_seconds, namespace)
            except KfpMindSporeError as failure:
                outcome = f"The rollback failed: {failure.message}"
            error.hint = f"{error.hint} {outcome}".strip()
            raise
        except (SystemExit, KeyboardInterrupt):
            # Terminated; without a canary, rollback would deploy the version before again.
            if self.get(name, namespace).canary is not None:
                self.rollback(name, wait_seconds, namespace)
            raise

    def rollback(self, name: str, wait_seconds: float = 120, namespace: str | None = None) -> ServiceStatus:
        """Remove the canary; without one, deploy the previous version's model as the next version.

        A version is kept for one rollback: the version that was rolled back is not.

        Args:
            name: Service name.
            wait_seconds: Seconds to wait until the version before serves.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
            UserError: It has neither a canary nor a version before.
            ProcessFailedError: The version does not start; the service is as before.
            WaitTimeoutError: It was not ready before the timeout; the same.
        """
        return self.backend.rollback(*self._check(name, namespace), wait_seconds=wait_seconds)

    def predict(
        self,
        name: str,
        inputs: NDArray[Any] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | DataFrame,
        *,
        url: str = "",
        namespace: str | None = None,
        timeout: float = 60.0,
    ) -> dict[str, NDArray[Any]]:
        """Return a service's predictions for any sample count, by the V2 protocol.

        Args:
            name: Service name.
            inputs: Arrays or lists with shape (N, …) by input name, or the array for a model with one input; converted
                to the model's data types. Inputs with dtype bytes are texts or bytes. For a table's model also a
                DataFrame, or a list of dicts, with the table's columns; other columns are ignored.
            url: Address to send the samples to, such as `status.canary.url` or `traffic_url`; default the service's.
            namespace: Service namespace; default the client's.
            timeout: Timeout for each request with 64 samples, in seconds.

        Returns:
            Arrays with shape (N, …) by output name. Texts are `str`; values that are not UTF-8 are bytes.

        Raises:
            NotFoundError: The service does not exist.
            UserError: An input is missing, unknown, empty, has another length or cannot be converted.
            RequestError: A request failed, or the model does not accept the samples.
        """
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or timeout <= 0:
            raise UserError(f"timeout: must be a number of seconds above 0, got {timeout!r}")
        return predict(self.get(name, namespace).url, name, inputs, target=url, timeout=timeout)

    def get(self, name: str, namespace: str | None = None) -> ServiceStatus:
        """Return a service's status.

        Args:
            name: Service name.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
        """
        return self.backend.get(*self._check(name, namespace))

    def list(self, namespace: str | None = None, *, all_namespaces: bool = False) -> builtins.list[ServiceStatus]:
        """Return the services in a namespace, sorted by name.

        Args:
            namespace: Default the client's.
            all_namespaces: Whether to return the services in every namespace.
        """
        return self.backend.list(None if all_namespaces else namespace or self.namespace)

    def wait_ready(self, name: str, timeout: float = 120, namespace: str | None = None) -> ServiceStatus:
        """Wait until a service is ready.

        Args:
            name: Service name.
            timeout: Seconds.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
            ProcessFailedError: It stopped or failed; the message has the log's last lines.
            WaitTimeoutError: It was not ready before the timeout.
        """
        deadline = time.monotonic() + timeout
        while not (status := self.get(name, namespace)).ready:
            if status.is_finished or time.monotonic() >= deadline:
                lines = builtins.list(self.logs(name, lines=_LAST_LINES, namespace=namespace))
                why = f": {status.message}" if status.message else ""
                if status.is_finished:
                    raise ProcessFailedError(f"service {name}: {status.state}{why}", log=lines)
                raise WaitTimeoutError(
                    f"service {name}: not ready within {timeout:g} s, {status.state}{why}", log=lines
                )
            time.sleep(_POLL_SECONDS)
        return status

    def logs(
        self, name: str, *, follow: bool = False, lines: int | None = None, namespace: str | None = None
    ) -> Iterator[str]:
        """Yield a service's log lines.

        Args:
            name: Service name.
            follow: Whether to continue until the service is finished.
            lines: Maximum number of existing lines; default all.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
        """
        return self.backend.read_logs(*self._check(name, namespace), follow=follow, lines=lines)

    def stop(self, name: str, namespace: str | None = None) -> ServiceStatus:
        """Stop a service and wait until the processes are gone; status and log are kept. Idempotent.

        Args:
            name: Service name.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
        """
        return self.backend.stop(*self._check(name, namespace))

    def delete(self, name: str, namespace: str | None = None) -> None:
        """Stop a service and delete all state.

        Args:
            name: Service name.
            namespace: Service namespace; default the client's.

        Raises:
            NotFoundError: The service does not exist.
        """
        self.backend.delete(*self._check(name, namespace))

    def _check(self, name: str, namespace: str | None) -> tuple[str, str]:
        namespace = namespace or self.namespace
        if errors := list_service_errors(name, namespace):
            raise ValidationError(errors, subject="service")
        return name, namespace


def create_serving_backend(name: str | None = None) -> ServingBackend:
    """Return the named backend.

    Args:
        name: `local`, `kubernetes` or its synonym `kserve`; default `KFP_MINDSPORE_BACKEND`, else the cluster in a pod
            and this machine anywhere else.

    Raises:
        UserError: The name is unknown.
    """
    name = name or get_backend_name()
    if name == LOCAL:
        from kfp_mindspore.inference.backends.local import LocalServingBackend

        return LocalServingBackend()
    if name in (KUBERNETES, KSERVE):
        from kfp_mindspore.inference.backends.kserve import KServeBackend

        return KServeBackend()
    raise UserError(f"{BACKEND_VARIABLE}: must be 'local' or 'kubernetes', got {name!r}")
