"""The Docker daemon: found, asked, and told apart from one that is not there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from kfp_mindspore.errors import KfpMindSporeError, MissingExtraError, UserError
from kfp_mindspore.images.reference import Reference
from kfp_mindspore.images.registry.configuration import RegistryConfig

_INSTEAD = {
    "append": "add only sources with --builder append",
    "cluster": "build on a cluster: --builder cluster",
}
_DEFAULT_HOST = "unix:///var/run/docker.sock"
_AGAIN = "Nothing was tagged in the registry. See that the daemon runs, and build again."


class Daemon:
    """One Docker daemon over its API.

    Args:
        host: Its address, such as `unix:///var/run/docker.sock`; an empty text for `$DOCKER_HOST`, else the default
            socket.
        registry: Whose docker config.json has the logins for pulls and pushes.
        timeout_seconds: Seconds the daemon may be silent before it counts as gone; a step of a build may be silent for
            long.
        others: Builders that can be taken instead, for messages.
    """

    def __init__(self, host: str, registry: RegistryConfig, timeout_seconds: float, others: Sequence[str] = ()) -> None:
        self.host = host
        self._registry = registry
        self._timeout_seconds = timeout_seconds
        *first, last = ("Start it", "name another with DOCKER_HOST", *(_INSTEAD[name] for name in others))
        self._start = f"{', '.join(first)}, or {last}"
        self._client: Any = None

    @property
    def address(self) -> str:
        """Where the daemon is, as DOCKER_HOST says it."""
        return self.host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST

    def connect(self) -> Any:
        """Return the SDK's low-level client; the daemon has answered.

        Raises:
            MissingExtraError: The docker SDK is not installed.
            UserError: No daemon answers.
        """
        if self._client is None:
            try:
                import docker
            except ImportError:
                raise MissingExtraError("docker", "images") from None
            from docker.utils import kwargs_from_env

            settings = kwargs_from_env()
            if self.host:
                settings["base_url"] = self.host
            try:
                # Asking for the version is the first contact.
                self._client = docker.APIClient(**settings, version="auto", timeout=int(self._timeout_seconds))
            except (docker.errors.DockerException, OSError) as error:
                raise UserError(
                    f"Docker daemon at {self.address}: does not answer ({_find_cause(error)})", hint=self._start
                ) from None
            if self._registry.docker_config is not None:
                self._client.reload_config(dockercfg_path=str(self._registry.docker_config))
        return self._client

    def close(self) -> None:
        """Let go of the connections; the next call makes new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def check_alive(self, trouble: str) -> None:
        """Find out whether the daemon still answers, after something went wrong.

        Args:
            trouble: What went wrong.

        Raises:
            KfpMindSporeError: It does not answer any more.
        """
        self.close()
        try:
            self.connect()
        except UserError as error:
            raise KfpMindSporeError(f"{trouble}; {error.message}", hint=_AGAIN) from None

    def find_image(self, name: str) -> str:
        """Return the ID of an image that the daemon has, or an empty text."""
        import docker

        with self.explain(f"image {name}"):
            try:
                return str(self.connect().inspect_image(name)["Id"])
            except docker.errors.ImageNotFound:
                return ""

    def build(
        self,
        context: BinaryIO,
        *,
        containerfile: str,
        tag: str,
        labels: Mapping[str, str],
        platform: str,
        build_args: Mapping[str, str],
        network: str,
    ) -> Generator[dict[str, Any], None, None]:
        """Start a build of the legacy builder and yield its messages."""
        with self.explain("build"):
            yield from self.connect().build(
                fileobj=context,
                custom_context=True,
                dockerfile=containerfile,
                tag=tag,
                labels=dict(labels),
                platform=platform,
                buildargs=dict(build_args),
                network_mode=network or None,
                rm=True,
                forcerm=True,
                decode=True,
            )

    def push(self, target: Reference) -> Generator[dict[str, Any], None, None]:
        """Push an image under its tag and yield the messages."""
        with self.explain(f"push of {target}"):
            yield from self.connect().push(target.name, tag=target.tag, stream=True, decode=True)

    @contextlib.contextmanager
    def explain(self, what: str) -> Iterator[None]:
        """Turn the SDK's and the connection's errors into ones that say what was done and what to do.

        Raises:
            UserError: The daemon refuses what it is asked.
            KfpMindSporeError: The daemon failed or is gone.
        """
        import docker
        import requests
        import urllib3

        try:
            yield
        except docker.errors.APIError as error:
            text = f"{what}: {error.explanation or error}"
            kind = UserError if error.is_client_error() else KfpMindSporeError
            raise kind(text) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise KfpMindSporeError(
                f"{what}: the Docker daemon at {self.address} hung up ({_find_cause(error)})",
                hint=_AGAIN,
            ) from None


def _find_cause(error: BaseException) -> str:
    """Return the innermost reason, without the objects that the HTTP libraries print around it."""
    found: BaseException = error
    while isinstance(inner := found.__cause__ or found.__context__, BaseException) and inner is not found:
        found = inner
    return (found.strerror if isinstance(found, OSError) and found.strerror else str(found)) or type(found).__name__
