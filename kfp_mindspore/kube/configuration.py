"""Where the cluster is and who asks: a kubeconfig, or the account of the pod that this process runs in."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import MissingExtraError
from kfp_mindspore.kube.errors import ConfigurationError
from kfp_mindspore.settings import SERVICE_ACCOUNT_DIR

_DEFAULT_FILE = "~/.kube/config"
# Commands that have no --backend come here too.
_CHOOSE = "Choose one with --kubeconfig or KUBECONFIG. Jobs need none with: kfp-mindspore job … --backend local"


@dataclass(frozen=True)
class Access:
    """How to reach a cluster.

    Attributes:
        configuration: kubernetes.client.Configuration, whose tokens renew themselves before they expire.
        namespace: The namespace that the context or the pod belongs to; `default` where neither says.
        source: What it was read from, for messages.
    """

    configuration: Any
    namespace: str
    source: str


def load_access(kubeconfig: str | os.PathLike[str] | None = None, context: str | None = None) -> Access:
    """Read a kubeconfig with its contexts and exec plugins; in a pod without one, the pod's own account.

    Args:
        kubeconfig: The file, or several with a path separator between them; default KUBECONFIG, then ~/.kube/config.
        context: One of its contexts; default the current one.

    Raises:
        ConfigurationError: There is none, or it cannot be used.
        MissingExtraError: The extra `kubernetes` is not installed.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise MissingExtraError("kubernetes", "kubernetes") from None

    named = str(kubeconfig or os.environ.get("KUBECONFIG") or "")
    file = named or str(Path(_DEFAULT_FILE).expanduser())
    if not named and context is None and not Path(file).is_file() and (SERVICE_ACCOUNT_DIR / "token").is_file():
        configuration = client.Configuration()
        with _explained("the pod's service account", config.ConfigException):
            config.load_incluster_config(client_configuration=configuration)
        return Access(_prepare(configuration), _read_namespace(), "the pod's service account")
    if not any(Path(part).is_file() for part in file.split(os.pathsep)):
        found = ", ".join(f"{part} {_find_obstacle(Path(part))}" for part in file.split(os.pathsep))
        raise ConfigurationError(f"no cluster is configured: {found}", hint=_CHOOSE)
    configuration = client.Configuration()
    with _explained(f"kubeconfig {file}", config.ConfigException) as failures:
        merged = config.kube_config.KubeConfigMerger(file).config
        contexts = [item.value["name"] for item in merged["contexts"]] if merged is not None else []
        if context is not None and context not in contexts:
            raise ConfigurationError(
                f"kubeconfig {file} has no context {context!r}, only {', '.join(contexts) or 'none at all'}",
                hint="Choose one of them with --context.",
            )
        config.load_kube_config(file, context, client_configuration=configuration)
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
        # A plugin that fails is only logged, and every request would be one of nobody.
        if failures and not configuration.api_key and not configuration.cert_file:
            raise ConfigurationError(
                f"kubeconfig {file}: its credentials cannot be had: {'; '.join(failures)}", hint="Log in again."
            )
    return Access(_prepare(configuration), chosen.safe_get("namespace") or "default", f"kubeconfig {file}")


def _find_obstacle(file: Path) -> str:
    if file.is_dir():
        return "is a directory"
    return "is not a file" if file.exists() else "does not exist"


def _prepare(configuration: Any) -> Any:
    # A job has many pods, and each log that is followed holds a connection.
    configuration.connection_pool_maxsize = 64
    return configuration


def _read_namespace() -> str:
    file = SERVICE_ACCOUNT_DIR / "namespace"
    return file.read_text(encoding="utf-8").strip() if file.is_file() else "default"


@contextmanager
def _explained(source: str, refusal: type[Exception]) -> Iterator[list[str]]:
    """Turn what a malformed file raises into a ConfigurationError, and collect what the loader only logs."""
    import yaml

    failures: list[str] = []
    logger = logging.getLogger()
    handler = _Collector(failures.append)
    handlers, logger.handlers = logger.handlers, [handler]
    try:
        yield failures
    except (refusal, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        text = " ".join(str(error).split())
        raise ConfigurationError(f"{source} cannot be used: {text}", hint=_CHOOSE) from error
    finally:
        logger.handlers = handlers


class _Collector(logging.Handler):
    def __init__(self, keep: Callable[[str], None]) -> None:
        super().__init__()
        self._keep = keep

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self._keep(" ".join(record.getMessage().split()))
