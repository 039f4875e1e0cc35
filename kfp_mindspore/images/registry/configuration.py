"""How registries are reached: which ones, by what protocol, with whose word and in whose place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.reference import Reference, parse_reference


@dataclass(frozen=True)
class RegistryConfig:
    """What is known about registries; nothing is guessed from the environment but where docker keeps its logins.

    Args:
        insecure: Hosts (with port) that are spoken to by plain HTTP. Every other host needs HTTPS with a valid
            certificate; `localhost` is no exception.
        ca_file: A PEM file of certificate authorities that are trusted instead of the system's.
        mirrors: For air-gapped sites: where images of a host are read from, such as
            `{"docker.io": "mirror.local:5000/docker"}`. Only reading is redirected; what is pushed goes where it is
            asked to go. The host itself is not tried when it has a mirror.
        docker_config: docker's `config.json` with logins and credential helpers; by default
            `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json`.
        pull_secrets: Secrets of type kubernetes.io/dockerconfigjson with which nodes pull the builder's image.
        push_secret: Secret of the same type with which a build on a cluster pulls the base image and pushes; empty for
            none.
        timeout_seconds: Seconds a registry may be silent before a request counts as failed.
        attempts: How often one request is sent at most when the registry answers 429 or 5xx or hangs up.
        backoff_seconds: Seconds before the second attempt; twice as long before each further one, up to 15. A
            registry's Retry-After of up to 60 s is waited for.
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
                raise UserError(f"insecure: must be HOST or HOST:PORT, got {host!r}")
        for host, place in self.mirrors.items():
            if not place.strip("/") or "://" in place:
                raise UserError(f"mirrors[{host}]: must be HOST or HOST/PATH, without a scheme, got {place!r}")
            parse_reference(f"{place.rstrip('/')}/image", field=f"mirrors[{host}]")

    def is_insecure(self, host: str) -> bool:
        """Return whether a host is reached by plain HTTP."""
        return host in self.insecure

    def locate(self, reference: Reference) -> Reference:
        """Return where an image is read from: its mirror's place when its host has one, else itself."""
        place = self.mirrors.get(reference.host)
        if place is None:
            return reference
        host, _, prefix = place.rstrip("/").partition("/")
        path = f"{prefix}/{reference.repository}" if prefix else reference.repository
        return Reference(host, path, reference.tag, reference.digest)
