"""The options that select a job backend, and their client."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.errors import UserError
from kfp_mindspore.kube.names import list_namespace_errors
from kfp_mindspore.settings import BACKEND_VARIABLE, KUBERNETES, LOCAL, get_backend_name

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJobClient


@dataclass(frozen=True)
class BackendOptions:
    """`--backend`, `--namespace`, `--context` and `--kubeconfig` values.

    Args:
        backend: Backend. [default: local on a machine, kubernetes in a pod]
        namespace: Namespace of the job. [default: the context's, else 'default']
        context: Context of the kubeconfig. [default: its current one]
        kubeconfig: A kubeconfig file. [default: KUBECONFIG, ~/.kube/config]
    """

    backend: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether the jobs are on a cluster."""
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


add_target_options = dataclass_options(
    BackendOptions,
    into="target",
    names={"namespace": "-n --namespace"},
    types={"backend": click.Choice([LOCAL, KUBERNETES]), "kubeconfig": click.Path(path_type=Path)},
    settings={"backend": {"envvar": BACKEND_VARIABLE}},
)
