"""Image names, `registry/repository:tag@digest`, by Docker's and containerd's rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kfp_mindspore.errors import UserError

DEFAULT_HOST = "docker.io"
_EXPECTED = "Expected HOST/NAME:TAG or HOST/NAME@sha256:…"
_EXPECTED_REPOSITORY = "Expected HOST/NAME; the tag is derived from the image's content."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?")


@dataclass(frozen=True)
class Reference:
    """An image's or repository's name.

    Args:
        host: Registry, with its port if any; default `docker.io`.
        repository: Path within the registry, `library/` added for Docker Hub's own.
        tag: Tag, or empty.
        digest: `sha256:…`, or empty.
    """

    host: str
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.name}{f':{self.tag}' if self.tag else ''}{f'@{self.digest}' if self.digest else ''}"

    @property
    def name(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.host}/{self.repository}"

    @property
    def selector(self) -> str:
        """The manifest's name in the registry: the digest, else the tag, else `latest`."""
        return self.digest or self.tag or "latest"

    def with_tag(self, tag: str) -> Reference:
        """Return the same repository with another tag and no digest."""
        return replace(self, tag=tag, digest="")

    def with_digest(self, digest: str) -> Reference:
        """Return the same repository by digest, without a tag."""
        return replace(self, tag="", digest=digest)


def parse_reference(text: str, *, field: str = "image", hint: str = _EXPECTED) -> Reference:
    """Parse an image's name.

    Args:
        text: Such as `python:3.11-slim`, `registry.local:5000/team/train@sha256:…`.
        field: Argument name, for the message.
        hint: The expected form, for the message.

    Raises:
        UserError: It is invalid; the message names the part.
    """
    rest, _, digest = text.strip().partition("@")
    if "/" in digest or "://" in rest:
        # Not quoted: a URL can hold a login.
        raise UserError(
            f"{field}: must be registry/repository:tag, not a URL or a name with a login",
            hint="Log in with: docker login HOST",
        )
    if digest and not _DIGEST.fullmatch(digest):
        raise UserError(f"{field}: must end with @sha256: and 64 hexadecimal digits, got {text!r}", hint=hint)
    first, slash, path = rest.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        host, rest = first, path
    else:
        host = DEFAULT_HOST
    rest, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise UserError(f"{field}: a tag is 1 to 128 of A-Z a-z 0-9 . _ -, got {tag!r} in {text!r}", hint=hint)
    if not _HOST.fullmatch(host):
        raise UserError(f"{field}: {host!r} is not a registry's host, in {text!r}", hint=hint)
    if host == DEFAULT_HOST and "/" not in rest:
        rest = f"library/{rest}"
    if not _REPOSITORY.fullmatch(rest):
        raise UserError(f"{field}: a repository is lower-case words with / . _ - between them, got {text!r}", hint=hint)
    return Reference(host, rest, tag, digest)


def parse_repository(text: str, *, field: str = "destination") -> Reference:
    """Parse a repository name to push to, without tag and digest.

    Raises:
        UserError: It is invalid, or has a tag or digest.
    """
    reference = parse_reference(text, field=field, hint=_EXPECTED_REPOSITORY)
    if reference.tag or reference.digest:
        raise UserError(
            f"{field}: must be a repository without tag and digest, got {text!r}", hint=_EXPECTED_REPOSITORY
        )
    return reference
