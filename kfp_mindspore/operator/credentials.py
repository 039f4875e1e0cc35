"""Who the operator is to the API server: a pod's service account, or a context of a kubeconfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.kube.configuration import Access, load_access

if TYPE_CHECKING:
    import kopf


@dataclass(frozen=True)
class Login:
    """Where to look for an identity.

    Attributes:
        kubeconfig: A kubeconfig file; empty for `$KUBECONFIG`, `~/.kube/config` or, in a pod, its service account.
        context: A context of the kubeconfig; empty for its current one.
    """

    kubeconfig: str = ""
    context: str = ""


class Credentials:
    """An address and an identity; tokens that expire are read anew when they do.

    Args:
        login: Where to look.

    Raises:
        ConfigurationError: Neither a service account nor a usable kubeconfig is there.
        MissingExtraError: The extra `operator` is not installed.
    """

    def __init__(self, login: Login):
        self._login = login
        self.load()

    def load(self) -> None:
        """Read service account or kubeconfig, and again after the API server no longer takes what they said."""
        self._access: Access = load_access(self._login.kubeconfig or None, self._login.context or None)
        self.connection = _connect(self._access)

    @property
    def namespace(self) -> str:
        """The namespace of the pod, or of the context."""
        return self._access.namespace

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that say who asks; a token that is about to expire is read anew."""
        if token := self._access.configuration.get_api_key_with_prefix("authorization"):
            return {"Authorization": token}
        basic = self.connection.as_aiohttp_basic_auth()
        return {"Authorization": basic.encode()} if basic else {}


def _connect(access: Access) -> kopf.ConnectionInfo:
    try:
        import kopf
    except ImportError:
        raise MissingExtraError("kopf", "operator") from None
    found = access.configuration
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        username=found.username or None,
        password=found.password or None,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        default_namespace=access.namespace,
    )
