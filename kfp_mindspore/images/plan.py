"""What an image is made of, and the tag that follows from all of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import BinaryIO

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.containerfile import CONTAINERFILE_FILE, REQUIREMENTS_FILE, SOURCES_FOLDER
from kfp_mindspore.images.context import BuildContext
from kfp_mindspore.images.entry import Entry

ALL_PLATFORMS = "all"
SOURCE_LABEL = "org.kfp-mindspore.image.sources"
PLAN_LABEL = "org.kfp-mindspore.image.plan"
_TAG_DIGITS = 20
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FOLDER = re.compile(r"(/[A-Za-z0-9._+-]+)+")
_LAST_SECOND = 253402300799
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9]+(/[a-z0-9.]+)?")
# A layer sets the mode and owner of the folders it names; these belong to the base image.
_SHARED_FOLDERS = (
    "/",
    "/bin",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
)
# Nothing in these lasts or is for other users.
_CLOSED_FOLDERS = frozenset({"dev", "proc", "root", "sys", "tmp"})


@dataclass(frozen=True)
class ImagePlan:
    """What an image is made of; two plans with equal digests are the same image.

    Args:
        context: The sources.
        base: Name of the base image.
        base_digest: Digest of the base image's manifest, `sha256:…`: a moved tag makes another plan.
        platform: Such as `linux/amd64`; `all` keeps every platform of the base (append builder only).
        requirements: pip requirements that are installed before the sources are copied.
        containerfile: Text of the Containerfile that docker and cluster builders run.
        replaced: Whether the Containerfile is the user's own.
        workdir: Absolute folder that the sources are put in and commands run in.
        user: `uid:gid` that the image runs as; an empty text keeps the base image's.
        env: Environment variables that the image sets.
        command: What the image runs; empty keeps the base image's.
        labels: Labels besides those that every image gets.
        created: The image's time of creation, in seconds since 1970 (SOURCE_DATE_EPOCH).
    """

    context: BuildContext
    base: str
    base_digest: str
    platform: str = "linux/amd64"
    requirements: tuple[str, ...] = ()
    containerfile: str = ""
    replaced: bool = False
    workdir: str = "/app"
    user: str = "1000:1000"
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created: int = 0

    def __post_init__(self) -> None:
        check_platform(self.platform)
        check_workdir(self.workdir)
        check_user(self.user)
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                raise UserError(f"env: a variable is named by letters, digits and _, got {name!r}")
            if not value.isprintable():
                raise UserError(f"env {name}: must be one line of printable text")
        if not 0 <= self.created <= _LAST_SECOND:
            raise UserError(f"created: must be seconds since 1970, before the year 10000, got {self.created}")

    @cached_property
    def source_digest(self) -> str:
        """Digest of the sources as they lie below `workdir`: the diffID of the layer that holds them and no more."""
        return self.context.layer(self.workdir).digest

    @cached_property
    def digest(self) -> str:
        """sha256 over everything the image is made of, in hexadecimal."""
        parts = {
            "base": self.base_digest,
            "command": list(self.command),
            "containerfile": self.containerfile,
            "created": self.created,
            "env": dict(self.env),
            "labels": dict(self.labels),
            "platform": self.platform,
            "requirements": list(self.requirements),
            "sources": self.source_digest,
            "user": self.user,
            "workdir": self.workdir,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def tag(self) -> str:
        """The head of the digest, which the image is tagged with."""
        return self.digest[:_TAG_DIGITS]

    @property
    def created_text(self) -> str:
        """`created` in RFC 3339, UTC."""
        return datetime.fromtimestamp(self.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def labels_of_identity(self) -> dict[str, str]:
        """The labels by which an image in a registry is known to be this plan's."""
        return {SOURCE_LABEL: self.source_digest, PLAN_LABEL: f"sha256:{self.digest}"}

    @property
    def all_labels(self) -> dict[str, str]:
        """Every label of the image: the user's, OCI's annotations and those of identity. Builders set exactly these."""
        return {
            **self.labels,
            "org.opencontainers.image.base.name": self.base,
            "org.opencontainers.image.base.digest": self.base_digest,
            "org.opencontainers.image.created": self.created_text,
            **self.labels_of_identity,
        }

    def write_context(self, file: BinaryIO) -> None:
        """Write the tar that a Containerfile is built in: itself, `requirements.txt` if there are any, and `sources/`.

        Memory does not grow with the sources; the same plan writes the same bytes.
        """
        extra = [Entry.from_bytes(CONTAINERFILE_FILE, self.containerfile.encode())]
        if self.requirements:
            extra.append(
                Entry.from_bytes(REQUIREMENTS_FILE, "".join(f"{line}\n" for line in self.requirements).encode())
            )
        self.context.write_tar(file, prefix=SOURCES_FOLDER, extra=extra)


def check_platform(platform: str) -> None:
    """Refuse what is no platform.

    Raises:
        UserError: It is neither such as `linux/amd64` nor `all`.
    """
    if platform != ALL_PLATFORMS and not _PLATFORM.fullmatch(platform):
        raise UserError(f"platform: must be such as linux/amd64, or {ALL_PLATFORMS}, got {platform!r}")


def check_user(user: str) -> None:
    """Refuse what names no user of an image; an empty text is the base image's.

    Raises:
        UserError: It is neither `uid:gid` nor a name.
    """
    if user and not _USER.fullmatch(user):
        raise UserError(f"user: must be uid:gid or a name, got {user!r}")


def check_workdir(workdir: str) -> None:
    """Refuse a folder that the base image shares with its system.

    Raises:
        UserError: It is relative, not in its plain form, or one of the system's folders.
    """
    if not (_FOLDER.fullmatch(workdir) or workdir == "/") or {".", ".."} & set(workdir.split("/")):
        raise UserError(f"workdir: must be an absolute folder such as /app, got {workdir!r}")
    if workdir in _SHARED_FOLDERS or workdir.split("/")[1] in _CLOSED_FOLDERS:
        raise UserError(f"workdir: {workdir} belongs to the base image", hint="Take a folder of its own, such as /app.")
