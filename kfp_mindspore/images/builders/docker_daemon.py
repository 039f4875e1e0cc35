"""Client of the Docker daemon's API."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Mapping
from typing import Any, BinaryIO

from kfp_mindspore.errors import KfpMindSporeError, UserError, require_extra
from kfp_mindspore.images.containerfile import CONTAINERFILE_FILE
from kfp_mindspore.images.reference import Reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.errors import get_root_cause

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_START_HINT = "Start it, name another with DOCKER_HOST, or build on a cluster: --builder cluster"
_RETRY_HINT = "No tag was set. Check that the daemon runs, and build again."


class DockerDaemon:
    """A Docker daemon, connected on first use.

    Args:
        host: Daemon address, such as `unix:///var/run/docker.sock`; empty for `$DOCKER_HOST`, else the default socket.
        registry: Names the docker config.json with the logins for pulls and pushes.
        timeout_seconds: Seconds without a response before it counts as gone; build steps can be silent for long.
    """

    def __init__(self, host: str, registry: RegistryConfig, timeout_seconds: float) -> None:
        self.address = host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
        self._host = host
        self._registry = registry
        self._timeout_seconds = timeout_seconds
        self._client: Any = None

    def connect(self) -> Any:
        """Return the SDK's low-level client; the daemon has responded.

        Raises:
            MissingExtraError: The docker SDK is not installed.
            UserError: No daemon responds.
        """
        if self._client is None:
            with require_extra("docker", "images"):
                import docker
            from docker.utils import kwargs_from_env

            settings = kwargs_from_env()
            if self._host:
                settings["base_url"] = self._host
            try:
                # version="auto" sends the first request.
                self._client = docker.APIClient(**settings, version="auto", timeout=int(self._timeout_seconds))
            except (docker.errors.DockerException, OSError) as error:
                raise UserError(
                    f"Docker daemon at {self.address}: does not respond ({get_root_cause(error)})", hint=_START_HINT
                ) from None
            if self._registry.docker_config is not None:
                self._client.reload_config(dockercfg_path=str(self._registry.docker_config))
        return self._client

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def check_connection(self, failure: str) -> None:
        """Check whether the daemon still responds after a failure.

        Args:
            failure: The failure's message.

        Raises:
            KfpMindSporeError: It does not.
        """
        self.close()
        try:
            self.connect()
        except UserError as error:
            raise KfpMindSporeError(f"{failure}; {error.message}", hint=_RETRY_HINT) from None

    def get_image_id(self, name: str) -> str:
        """Return an image's ID in the daemon, or an empty string."""
        import docker

        with self._convert_errors(f"image {name}"):
            try:
                return str(self.connect().inspect_image(name)["Id"])
            except docker.errors.ImageNotFound:
                return ""

    def build(
        self,
        context: BinaryIO,
        *,
        tag: str,
        labels: Mapping[str, str],
        platform: str,
        build_args: Mapping[str, str],
        network: str,
    ) -> Generator[dict[str, Any], None, None]:
        """Build with the legacy builder and yield its messages."""
        with self._convert_errors("build"):
            yield from self.connect().build(
                fileobj=context,
                custom_context=True,
                dockerfile=CONTAINERFILE_FILE,
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
        """Push a tag and yield the messages."""
        with self._convert_errors(f"push of {target}"):
            yield from self.connect().push(target.name, tag=target.tag, stream=True, decode=True)

    @contextlib.contextmanager
    def _convert_errors(self, action: str) -> Iterator[None]:
        import docker
        import requests
        import urllib3

        try:
            yield
        except docker.errors.APIError as error:
            kind = UserError if error.is_client_error() else KfpMindSporeError
            raise kind(f"{action}: {error.explanation or error}") from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            raise KfpMindSporeError(
                f"{action}: the Docker daemon at {self.address} closed the connection ({get_root_cause(error)})",
                hint=_RETRY_HINT,
            ) from None
