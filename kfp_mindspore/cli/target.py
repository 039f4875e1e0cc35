"""The options that select a job backend, and their client."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kfp_mindspore.cli.output import add_backend_option
from kfp_mindspore.errors import UserError
from kfp_mindspore.kube.names import list_namespace_errors

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJobClient

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class BackendOptions:
    """`--backend`, `--namespace`, `--context` and `--kubeconfig` values.

    Attributes:
        backend: `local`, `kubernetes`, or None for the environment's.
        namespace: Job namespace; None for the backend's.
        context: The kubeconfig's context.
        kubeconfig: The kubeconfig.
    """

    backend: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether the jobs are on a cluster."""
        from kfp_mindspore.settings import KUBERNETES, get_backend_name

        return (self.backend or (KUBERNETES if self._names_cluster else get_backend_name())) == KUBERNETES

    def make_client(self) -> MSJobClient:
        """Return the client.

        Raises:
            UserError: The options contradict each other, or the namespace is invalid.
        """
        if self.namespace is not None and (errors := list_namespace_errors("--namespace", self.namespace)):
            raise UserError(errors[0])
        from kfp_mindspore.msjob import KubernetesBackend, LocalBackend, MSJobClient

        if self.is_cluster:
            return MSJobClient(KubernetesBackend(self.namespace, self.context, self.kubeconfig), self.namespace)
        if self._names_cluster:
            raise UserError(
                f"{'--context' if self.context else '--kubeconfig'}: names a cluster, but jobs go to this machine",
                hint="Add --backend kubernetes.",
            )
        return MSJobClient(LocalBackend(), self.namespace)

    @property
    def _names_cluster(self) -> bool:
        return self.context is not None or self.kubeconfig is not None


def add_target_options(command: Command) -> Command:
    """Add `--backend`, `--namespace`, `--context` and `--kubeconfig`, passed to the command as `target`."""

    @functools.wraps(command)
    def wrapped(
        *arguments: Any,
        backend: str | None,
        namespace: str | None,
        context: str | None,
        kubeconfig: Path | None,
        **options: Any,
    ) -> Any:
        return command(*arguments, target=BackendOptions(backend, namespace, context, kubeconfig), **options)

    file = click.Path(path_type=Path)
    for add in (
        click.option("--kubeconfig", type=file, help="A kubeconfig file. [default: KUBECONFIG, ~/.kube/config]"),
        click.option("--context", help="Context of the kubeconfig. [default: its current one]"),
        click.option("-n", "--namespace", help="Namespace of the job. [default: the context's, else 'default']"),
        add_backend_option,
    ):
        wrapped = add(wrapped)
    return wrapped  # type: ignore[return-value]
