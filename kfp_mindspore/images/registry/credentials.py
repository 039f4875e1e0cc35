"""Registry logins from docker's config.json, credential helpers included."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from kfp_mindspore.errors import UserError, require_extra
from kfp_mindspore.files import read_json
from kfp_mindspore.images.reference import DEFAULT_HOST
from kfp_mindspore.images.registry.configuration import RegistryConfig


@dataclass(frozen=True)
class RegistryCredentials:
    """A registry login.

    Args:
        username: User name; empty with an identity token.
        password: Password or access token; not in the repr.
        identity_token: OAuth2 refresh token; not in the repr.
    """

    username: str
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def get_credentials(host: str, config: RegistryConfig) -> RegistryCredentials | None:
    """Return the login for a registry, or None without one.

    Raises:
        UserError: config.json or the host's entry cannot be read, or a credential helper is missing or fails.
    """
    file = config.docker_config
    if file is None:
        file = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
        if not file.is_file():
            return None
    if not Path(file).is_file():
        raise UserError(f"docker_config: {file}: no such file")
    content = read_json(Path(file))
    if not isinstance(content, dict):
        raise UserError(f"{file}: must hold a JSON object")
    if not content:
        return None
    with require_extra("docker", "images"):
        from docker.auth import AuthConfig
        from docker.errors import DockerException
    # docker's SDK names Docker Hub by None.
    registry = None if host == DEFAULT_HOST else host
    helper = ""
    try:
        logins = AuthConfig.load_config(None, content)
        helper = logins.get_credential_store(registry) or ""
        with warnings.catch_warnings():
            # A missing helper is both a warning and an error.
            warnings.simplefilter("ignore")
            entry = logins.resolve_authconfig(registry) or {}
    except (DockerException, ValueError, LookupError, TypeError, AttributeError) as error:
        # The helper's output and the entry can hold a password: quote neither.
        problem = f"the credential helper docker-credential-{helper} failed" if helper else "the logins cannot be read"
        raise UserError(
            f"{file}: {problem} for {host} ({type(error).__name__})", hint=f"Log in again: docker login {host}"
        ) from None
    # Logins in the file and logins from a helper differ in their keys' case.
    values = {key.lower(): str(value) for key, value in entry.items() if value}
    if values.get("identitytoken"):
        return RegistryCredentials("", identity_token=values["identitytoken"])
    if values.get("username"):
        return RegistryCredentials(values["username"], values.get("password", ""))
    return None
