"""The default backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfp_mindspore.errors import UserError
from kfp_mindspore.settings import BACKEND_VARIABLE, KUBERNETES, LOCAL, get_backend_name

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import JobBackend


def create_job_backend(namespace: str | None = None) -> JobBackend:
    """Return the backend that `get_backend_name` names.

    Args:
        namespace: Job namespace; default the context's or the pod's.

    Raises:
        UserError: KFP_MINDSPORE_BACKEND names no backend.
    """
    from kfp_mindspore.msjob.backends.kubernetes import KubernetesBackend
    from kfp_mindspore.msjob.backends.local import LocalBackend

    name = get_backend_name()
    if name == LOCAL:
        return LocalBackend()
    if name == KUBERNETES:
        return KubernetesBackend(namespace=namespace)
    raise UserError(f"{BACKEND_VARIABLE}: must be 'local' or 'kubernetes', got {name!r}")
