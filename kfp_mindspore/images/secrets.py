"""Finds what looks like a secret among sources, by name and by the shape of its content; it is never quoted."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.context import Entry

_NAMES = (
    ".env",
    ".env.*",
    ".git-credentials",
    ".htpasswd",
    ".netrc",
    ".npmrc",
    ".pypirc",
    "*.jks",
    "*.key",
    "*.keystore",
    "*.kubeconfig",
    "*.p12",
    "*.pem",
    "*.pfx",
    "credentials",
    "credentials.json",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "id_rsa",
    "kubeconfig",
    "service-account*.json",
)
_PATHS = ("*.docker/config.json", "*.kube/config")
_HARMLESS = (".env.example", ".env.sample", ".env.template")
# What it would be, texts of which one is in it, and its shape: a text is found many times faster than a shape.
_SHAPES = (
    ("a private key", (b"PRIVATE KEY-----",), re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("an AWS access key", (b"AKIA", b"ASIA"), re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    (
        "a GitHub token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        re.compile(rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})"),
    ),
    ("a Slack token", (b"xox",), re.compile(rb"\bxox[abprs]-[0-9A-Za-z-]{20}")),
)
_SCANNED_BYTES = 1 << 20
_URL_PASSWORD = re.compile(r"://[^/\s@]+@")
_VARIABLE = re.compile(r"(?i)(^|_)(password|passwd|secret|token|api_?key|access_?key|credentials)(_|$)")


def find_secrets(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield a sentence for each file that looks like a secret."""
    for entry in entries:
        reason = _judge(entry)
        if reason:
            yield f"{entry.path}: {reason}; leave it out by .dockerignore if it is one"


def check_requirements(requirements: Iterable[str]) -> None:
    """Refuse requirements that carry a login, which would stay in a layer.

    Raises:
        UserError: A URL has a user in it; the message does not quote it.
    """
    for number, line in enumerate(requirements, start=1):
        if _URL_PASSWORD.search(line) and "git+ssh://" not in line:
            raise UserError(
                f"requirements, line {number}: a URL with a login in it would stay in the image",
                hint="Give the login to the build as a secret, or install from a mirror that needs none.",
            )


def check_env(env: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable whose name says that it is a secret."""
    for name in sorted(env):
        if _VARIABLE.search(name):
            yield f"env {name}: everyone who can pull the image can read it; give secrets to the job instead"


def _judge(entry: Entry) -> str:
    name = entry.path.rpartition("/")[2]
    if entry.link or name in _HARMLESS:
        return ""
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _NAMES) or any(
        fnmatch.fnmatchcase(entry.path, pattern) for pattern in _PATHS
    ):
        return "looks like a secret by its name"
    if entry.size > _SCANNED_BYTES:
        return ""
    content = b"".join(entry.read())
    for what, texts, shape in _SHAPES:
        if any(text in content for text in texts) and shape.search(content):
            return f"looks as if it held {what}"
    return ""
