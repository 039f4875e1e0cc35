"""How registries are reached: protocol, trust, logins, mirrors and retries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.images.reference import Reference, parse_reference


@dataclass(frozen=True)
class RegistryConfig:
    """How registries are reached.

    Args:
        insecure: Hosts (with port) that use plain HTTP. Every other host needs HTTPS with a valid certificate, also
            `localhost`.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        mirrors: Where a host's images are read from, such as `{"docker.io": "mirror.local:5000/docker"}`. Pushes are
            not redirected; there is no fallback to the host.
        docker_config: docker's `config.json` with logins and credential helpers; default: `$DOCKER_CONFIG/config.json`,
            else `~/.docker/config.json`.
        pull_secrets: Secrets with type kubernetes.io/dockerconfigjson with which nodes pull the builder's image.
        push_secret: Secret with the same type, with which a build on a cluster pulls the base image and pushes; empty
            for none.
        timeout_seconds: Connect and read timeout for a request, in seconds.
        attempts: Attempts per request after 429, 5xx or a broken connection.
        backoff_seconds: Seconds before the second attempt, doubled before each further one, up to 15. Retry-After up to
            60 s is honoured.
    """

    insecure: tuple[str, ...] = ()
    ca_file: Path | None = None
    mirrors: Mapping[str, str] = field(default_factory=dict)
    docker_config: Path | None = None
    pull_secrets: tuple[str, ...] = ()
    push_secret: str = ""
    timeout_seconds: float = 60.0
    attempts: int = 6
    backoff_seconds: float = 0.5

    def __post_init__(self) -> None:
        if self.ca_file is not None and not Path(self.ca_file).is_file():
            raise UserError(f"ca_file: {self.ca_file}: no such file")
        if self.attempts < 1:
            raise UserError(f"attempts: must be at least 1, got {self.attempts}")
        for host in self.insecure:
            if not host or "/" in host:
                raise ValidationError([f"insecure: must be HOST or HOST:PORT, got {host!r}"])
        for host, location in self.mirrors.items():
            if not location.strip("/") or "://" in location:
                raise ValidationError(
                    [f"mirrors[{host}]: must be HOST or HOST/PATH, without a scheme, got {location!r}"]
                )
            parse_reference(f"{location.rstrip('/')}/image", field=f"mirrors[{host}]")

    def is_insecure(self, host: str) -> bool:
        """Return whether a host uses plain HTTP."""
        return host in self.insecure

    def locate(self, reference: Reference) -> Reference:
        """Return where an image is read from: its host's mirror, or itself."""
        location = self.mirrors.get(reference.host)
        if location is None:
            return reference
        host, _, prefix = location.rstrip("/").partition("/")
        path = f"{prefix}/{reference.repository}" if prefix else reference.repository
        return Reference(host, path, reference.tag, reference.digest)
