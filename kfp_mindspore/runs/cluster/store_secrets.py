"""Copies of the artifact store's Secrets, for jobs in another namespace than their run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import NotFoundError, UserError
from kfp_mindspore.kube.resources import SECRETS
from kfp_mindspore.stores.config import list_secrets, read_default_root, read_providers

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster

Document = dict[str, Any]

_PART = "kfp-mindspore"
_PART_LABEL = "app.kubernetes.io/part-of"
_SOURCE_ANNOTATION = "kfp-mindspore/copied-from"


@dataclass(frozen=True)
class SecretCopy:
    """A Secret of the run's namespace that job pods in another namespace refer to.

    Args:
        name: Secret name in both namespaces.
        source: The run's namespace.
        namespace: The jobs' namespace.
        data: The store's keys, encoded as in a Secret.
        present: The Secret in the jobs' namespace; None without one.
    """

    name: str
    source: str
    namespace: str
    data: Mapping[str, str]
    present: Document | None = None

    @property
    def is_current(self) -> bool:
        """Whether the jobs' namespace has the same keys with the same values."""
        present = (self.present or {}).get("data") or {}
        return all(present.get(key) == value for key, value in self.data.items())

    @property
    def is_foreign(self) -> bool:
        """Whether the jobs' namespace has a Secret that is no copy, such as that of a profile of Kubeflow."""
        labels = (self.present or {}).get("metadata", {}).get("labels") or {}
        return self.present is not None and labels.get(_PART_LABEL) != _PART

    def build(self) -> Document:
        """Return the copy's manifest."""
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {_PART_LABEL: _PART},
                "annotations": {_SOURCE_ANNOTATION: f"{self.source}/{self.name}"},
            },
            "type": "Opaque",
            "data": dict(self.data),
        }


def list_copies(cluster: Cluster, source: str, namespaces: Sequence[str], root: str = "") -> Iterator[SecretCopy]:
    """Yield the Secrets that jobs in other namespaces than their run's need.

    Args:
        cluster: The cluster.
        source: The run's namespace.
        namespaces: The jobs' namespaces.
        root: Pipeline root; default the namespace's.

    Raises:
        UserError: The ConfigMap `kfp-launcher` is invalid, or a Secret that it names is missing or lacks a key.
        ForbiddenError: The caller may not read the ConfigMap or a Secret.
    """
    others = [namespace for namespace in dict.fromkeys(namespaces) if namespace != source]
    if not others:
        return
    secrets = list_secrets(root or read_default_root(cluster, source), read_providers(cluster, source))
    for name, keys in secrets.items():
        found = _read(cluster, name, source)
        if found is None:
            raise UserError(
                f"Secret {source}/{name} with the artifact store's credentials does not exist",
                hint="It is named in the ConfigMap kfp-launcher, or is the default of KFP.",
            )
        data = found.get("data") or {}
        if missing := sorted(keys - data.keys()):
            raise UserError(f"Secret {source}/{name}: has no key {missing[0]!r}")
        for namespace in others:
            yield SecretCopy(
                name, source, namespace, {key: data[key] for key in sorted(keys)}, _read(cluster, name, namespace)
            )


def _read(cluster: Cluster, name: str, namespace: str) -> Document | None:
    try:
        return cluster.get(SECRETS, name, namespace)
    except NotFoundError:
        return None
