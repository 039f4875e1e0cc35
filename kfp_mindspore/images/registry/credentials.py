"""Logins as docker keeps them: config.json and its credential helpers. They are never shown."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.files import read_json
from kfp_mindspore.images.reference import DEFAULT_HOST
from kfp_mindspore.images.registry.configuration import RegistryConfig

_HUB_KEY = "https://index.docker.io/v1/"
_HELPER = re.compile(r"[A-Za-z0-9._-]+")
_HELPER_SECONDS = 60.0
_IDENTITY_USER = "<token>"


@dataclass(frozen=True)
class Credentials:
    """Who asks a registry.

    Args:
        username: The user's name.
        password: Password or access token; not in the repr.
        identity_token: A refresh token in the place of a password; not in the repr.
    """

    username: str
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def find_config_file(config: RegistryConfig) -> Path:
    """Return the path of docker's config.json; it may not exist."""
    if config.docker_config is not None:
        return Path(config.docker_config)
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


def find_credentials(host: str, config: RegistryConfig) -> Credentials | None:
    """Return the login for a registry, or None when docker knows none.

    A helper of this host (`credHelpers`) is asked first, then the store of all (`credsStore`), then `auths`.

    Raises:
        UserError: config.json is no JSON, an entry cannot be read, or a helper is missing or fails.
    """
    file = find_config_file(config)
    if not file.is_file():
        if config.docker_config is not None:
            raise UserError(f"docker_config: {file}: no such file")
        return None
    content = read_json(file)
    if not isinstance(content, dict):
        raise UserError(f"{file}: must hold a JSON object")
    key, helper = _find_helper(host, content)
    if helper:
        found = _ask_helper(helper, key)
        if found is not None:
            return found
    for name, entry in _section(content, "auths").items():
        if _normalise(name) == _normalise(host) and isinstance(entry, dict):
            found = _read_entry(entry, f"{file}: auths[{name}]")
            if found is not None:
                return found
    return None


def _find_helper(host: str, content: Mapping[str, Any]) -> tuple[str, str]:
    for name, helper in _section(content, "credHelpers").items():
        if _normalise(name) == _normalise(host):
            return name, str(helper)
    known = [name for name in _section(content, "auths") if _normalise(name) == _normalise(host)]
    key = known[0] if known else _HUB_KEY if host == DEFAULT_HOST else host
    return key, str(content.get("credsStore") or "")


def _section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def _normalise(name: str) -> str:
    host = name.partition("://")[2] or name
    host = host.partition("/")[0]
    return DEFAULT_HOST if host in ("index.docker.io", "registry-1.docker.io") else host


def _read_entry(entry: Mapping[str, Any], where: str) -> Credentials | None:
    if entry.get("identitytoken"):
        return Credentials(_IDENTITY_USER, identity_token=str(entry["identitytoken"]))
    if entry.get("auth"):
        try:
            text = base64.b64decode(str(entry["auth"]), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise UserError(f"{where}: auth must be base64 of user:password") from None
        username, colon, password = text.partition(":")
        if not colon:
            raise UserError(f"{where}: auth must be base64 of user:password")
        return Credentials(username, password.rstrip("\0"))
    if entry.get("username"):
        return Credentials(str(entry["username"]), str(entry.get("password") or ""))
    return None


def _ask_helper(helper: str, key: str) -> Credentials | None:
    program = f"docker-credential-{helper}"
    if not _HELPER.fullmatch(helper) or shutil.which(program) is None:
        raise UserError(f"{program}: not found on PATH, and docker's config.json names it for {key}")
    try:
        done = subprocess.run(
            [program, "get"], input=key, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{program}: gave no answer for {key} in {_HELPER_SECONDS:.0f} s") from None
    if done.returncode:
        if "credentials not found" in done.stdout + done.stderr:
            return None
        # What it printed can hold a secret.
        raise UserError(f"{program}: failed for {key} with exit code {done.returncode}")
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{program}: its answer for {key} is no JSON with Username and Secret") from None
    if username == _IDENTITY_USER:
        return Credentials(username, identity_token=secret)
    return Credentials(username, secret)
