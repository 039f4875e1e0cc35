"""Which backend it is, where nobody says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import Backend

BACKEND_VARIABLE = "KFP_MINDSPORE_BACKEND"
LOCAL = "local"
KUBERNETES = "kubernetes"
_POD_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def find_backend_name() -> str:
    """Return what KFP_MINDSPORE_BACKEND says; by default `local`, and `kubernetes` in a pod."""
    return os.environ.get(BACKEND_VARIABLE) or (KUBERNETES if _POD_ACCOUNT.is_file() else LOCAL)


def choose_backend(namespace: str | None = None) -> Backend:
    """Return the backend that `find_backend_name` names.

    Args:
        namespace: Namespace of the jobs; default that of the context or the pod.

    Raises:
        UserError: KFP_MINDSPORE_BACKEND names none.
    """
    from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend
    from kfp_mindspore.msjob.backends.local import LocalBackend

    name = find_backend_name()
    if name == LOCAL:
        return LocalBackend()
    if name == KUBERNETES:
        return KubernetesBackend(namespace=namespace)
    raise UserError(f"{BACKEND_VARIABLE}: must be 'local' or 'kubernetes', got {name!r}")
