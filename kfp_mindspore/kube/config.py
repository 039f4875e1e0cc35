"""Cluster address and credentials: from a kubeconfig, or from the pod's service account."""

from __future__ import annotations

import base64
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import require_extra
from kfp_mindspore.kube.errors import ConfigurationError
from kfp_mindspore.settings import SERVICE_ACCOUNT_DIR

_DEFAULT_FILE = "~/.kube/config"
_TOKEN_SECONDS = 60.0
# Also reached by commands without --backend.
_HINT = "Set --kubeconfig or KUBECONFIG. Jobs and services need no cluster with --backend local."


@dataclass(frozen=True)
class ClusterConfig:
    """Cluster address and credentials.

    Attributes:
        server: The API server's URL.
        namespace: The context's or the pod's namespace; `default` where none is given.
        source: Where it was read from, for error messages.
        get_authorization: Returns the present Authorization header; empty with client certificates.
        ca_file: The server's certificate authority; None for the system's.
        cert_file: Client certificate.
        key_file: The certificate's private key.
        verify: Whether to verify the server's certificate.
        server_name: Host name in the server's certificate; None for the URL's.
        is_given: Whether Kubernetes itself gave the address, so that an unreachable server is worth a retry.
    """

    server: str
    namespace: str
    source: str
    get_authorization: Callable[[], str] = field(default=str, repr=False, compare=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_name: str | None = None
    is_given: bool = False

    def create_ssl_context(self) -> ssl.SSLContext:
        """Return a context with the cluster's certificate authority and the client's certificate.

        Raises:
            ConfigurationError: A certificate or key is invalid.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            raise ConfigurationError(f"{self.source}: its certificates cannot be used: {error}", hint=_HINT) from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def load_config(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> ClusterConfig:
    """Read a kubeconfig with its contexts, exec plugins and OIDC tokens; in a pod without one, its service account.

    Args:
        kubeconfig: The file, or several with a path separator between them; default KUBECONFIG, then ~/.kube/config.
        context: Context name; default the current one.

    Raises:
        ConfigurationError: None was found, or it cannot be used.
        MissingExtraError: The extra `kubernetes` is not installed.
    """
    named = str(kubeconfig or os.environ.get("KUBECONFIG") or "")
    file = named or str(Path(_DEFAULT_FILE).expanduser())
    if not named and context is None and not Path(file).is_file() and (SERVICE_ACCOUNT_DIR / "token").is_file():
        return _load_service_account()
    if not any(Path(part).is_file() for part in file.split(os.pathsep)):
        found = ", ".join(f"{part} {_describe_path(Path(part))}" for part in file.split(os.pathsep))
        raise ConfigurationError(f"no cluster is configured: {found}", hint=_HINT)
    return _load_kubeconfig(file, context)


def _load_service_account() -> ClusterConfig:
    """Read the service account without the kubernetes package, whose import takes 0.5 s CPU time and 50 MB."""
    source = "the pod's service account"
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigurationError(
            f"{source} cannot be used: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set", hint=_HINT
        )
    file = SERVICE_ACCOUNT_DIR / "namespace"
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        namespace=file.read_text(encoding="utf-8").strip() if file.is_file() else "default",
        source=source,
        get_authorization=_TokenFile(SERVICE_ACCOUNT_DIR / "token"),
        ca_file=str(SERVICE_ACCOUNT_DIR / "ca.crt"),
        is_given=True,
    )


class _TokenFile:
    """A token that the kubelet rotates, re-read every minute."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._authorization = ""
        self._read_at = 0.0

    def __call__(self) -> str:
        if not self._authorization or time.monotonic() - self._read_at > _TOKEN_SECONDS:
            self._authorization = f"Bearer {self._file.read_text(encoding='utf-8').strip()}"
            self._read_at = time.monotonic()
        return self._authorization


def _load_kubeconfig(file: str, context: str | None) -> ClusterConfig:
    with require_extra("kubernetes", "kubernetes"):
        from kubernetes import client, config

    loaded = client.Configuration()
    with _explain_failures(f"kubeconfig {file}", config.ConfigException) as failures:
        merged = config.kube_config.KubeConfigMerger(file).config
        contexts = [item.value["name"] for item in merged["contexts"]] if merged is not None else []
        if context is not None and context not in contexts:
            raise ConfigurationError(
                f"kubeconfig {file} has no context {context!r}, only {', '.join(contexts) or 'none at all'}",
                hint="Choose one of them with --context.",
            )
        config.load_kube_config(file, context, client_configuration=loaded)
        selected = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        # Plugin failures are only logged, and requests would be anonymous.
        if failures and not loaded.api_key and not loaded.cert_file:
            raise ConfigurationError(
                f"kubeconfig {file}: its credentials cannot be had: {'; '.join(failures)}", hint="Log in again."
            )
    authorization = _get_authorization(loaded)
    return ClusterConfig(
        server=loaded.host.rstrip("/"),
        namespace=selected.safe_get("namespace") or "default",
        source=f"kubeconfig {file}",
        # Expired tokens are rejected (401), and then the kubeconfig is loaded again.
        get_authorization=lambda: authorization,
        ca_file=loaded.ssl_ca_cert,
        cert_file=loaded.cert_file,
        key_file=loaded.key_file,
        verify=loaded.verify_ssl,
        server_name=loaded.tls_server_name,
    )


def _get_authorization(loaded: Any) -> str:
    if token := loaded.api_key.get("authorization"):
        return str(token)
    if loaded.username and loaded.password:
        return "Basic " + base64.b64encode(f"{loaded.username}:{loaded.password}".encode()).decode()
    return ""


def _describe_path(file: Path) -> str:
    if file.is_dir():
        return "is a directory"
    return "is not a file" if file.exists() else "does not exist"


@contextmanager
def _explain_failures(source: str, refusal: type[Exception]) -> Iterator[list[str]]:
    """Raise a ConfigurationError for malformed files, and collect errors that the loader only logs."""
    import yaml

    failures: list[str] = []
    logger = logging.getLogger()
    handler = _Collector(failures)
    handlers, logger.handlers = logger.handlers, [handler]
    try:
        yield failures
    except (refusal, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        text = " ".join(str(error).split())
        raise ConfigurationError(f"{source} cannot be used: {text}", hint=_HINT) from error
    finally:
        logger.handlers = handlers


class _Collector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(" ".join(record.getMessage().split()))
