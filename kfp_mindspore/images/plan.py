"""An image's options, and its plan: everything that determines the image, and the tag derived from it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, BinaryIO

from kfp_mindspore.canonical import canonicalize
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.files import digest_bytes
from kfp_mindspore.images.containerfile import (
    CONTAINERFILE_FILE,
    REQUIREMENTS_FILE,
    SOURCES_FOLDER,
    check_containerfile,
    generate_containerfile,
)
from kfp_mindspore.images.sources.context import BuildContext
from kfp_mindspore.images.sources.entry import ContextEntry

ALL_PLATFORMS = "all"
EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
SOURCE_LABEL = "org.kfp-mindspore.image.sources"
PLAN_LABEL = "org.kfp-mindspore.image.plan"
_TAG_LENGTH = 20
_MAX_EPOCH = 253402300799  # year 9999's end
_PLATFORM = re.compile(r"[a-z0-9]+/[a-z0-9]+(/[a-z0-9.]+)?")
_WORKDIR = re.compile(r"(/[A-Za-z0-9._+-]+)+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_VARIABLE = re.compile(r"(?i)(^|_)(password|passwd|secret|token|api_?key|access_?key|credentials)(_|$)")
# A layer sets its folders' mode and owner: the base image's must stay as they are.
_SYSTEM_FOLDERS = frozenset(["bin", "dev", "etc", "home", "lib", "proc", "root", "run", "sys", "tmp", "usr", "var"])
# Folders below these are not persistent or not readable for other users.
_PRIVATE_FOLDERS = frozenset({"dev", "proc", "root", "sys", "tmp"})


def get_source_date_epoch() -> int:
    """Return `$SOURCE_DATE_EPOCH`, or 0 without it: a current time would give every build another digest.

    Raises:
        UserError: It is not a time in seconds.
    """
    text = os.environ.get(EPOCH_VARIABLE, "0")
    if not text.isascii() or not text.isdigit():
        raise UserError(f"{EPOCH_VARIABLE}: must be seconds since 1970, got {text!r}")
    return int(text)


def check_platform(platform: str, *, field: str = "platform") -> None:
    """Validate a platform.

    Args:
        platform: The platform.
        field: Argument name, for the message.

    Raises:
        UserError: It is neither such as `linux/amd64` nor `all`.
    """
    if platform != ALL_PLATFORMS and not _PLATFORM.fullmatch(platform):
        raise UserError(f"{field}: must be such as linux/amd64, or {ALL_PLATFORMS}, got {platform!r}")


@dataclass(frozen=True)
class ImageOptions:
    """An image's properties besides its sources.

    Args:
        base: The base image's name.
        platform: Such as `linux/amd64`; `all` keeps every base image platform (append builder only).
        requirements: pip requirements, in addition to the sources' own.
        containerfile: Containerfile text that replaces the generated one; empty generates it.
        workdir: The sources' absolute folder, and the command's working directory.
        user: `uid:gid` for the command; empty keeps the base image's.
        env: Environment variables; PATH, LD_LIBRARY_PATH and PYTHONPATH precede the base image's values.
        command: The image's command; default: the sources' command, else the base image's.
        labels: Labels, in addition to the labels on every image.
        created: Creation time in seconds since 1970; default: `$SOURCE_DATE_EPOCH`, else 0.

    Raises:
        ValidationError: Values are invalid; each error starts with its field.
    """

    base: str
    platform: str = "linux/amd64"
    requirements: tuple[str, ...] = ()
    containerfile: str = ""
    workdir: str = "/app"
    user: str = "1000:1000"
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    created: int = field(default_factory=get_source_date_epoch)

    def __post_init__(self) -> None:
        check_platform(self.platform)
        errors = _list_workdir_errors(self.workdir)
        if self.user and not _USER.fullmatch(self.user):
            errors.append(f"user: must be uid:gid or a name, got {self.user!r}")
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name):
                errors.append(f"env: a variable's name has letters, digits and _, got {name!r}")
            elif not value.isprintable():
                errors.append(f"env {name}: must be one line of printable text")
        if not 0 <= self.created <= _MAX_EPOCH:
            errors.append(f"created: must be seconds since 1970, before the year 10000, got {self.created}")
        if errors:
            raise ValidationError(errors)
        if self.containerfile:
            check_containerfile(self.containerfile)


@dataclass(frozen=True)
class ImagePlan:
    """Everything that determines an image: plans with equal digests are the same image.

    Args:
        context: The sources.
        options: The options, with the sources' requirements and command.
        base_digest: The base image manifest's digest, `sha256:…`: a moved tag gives another plan.
    """

    context: BuildContext
    options: ImageOptions
    base_digest: str

    @cached_property
    def containerfile(self) -> str:
        """The Containerfile: the user's own, or the generated one."""
        options = self.options
        return options.containerfile or generate_containerfile(
            self.base_reference,
            requirements=bool(options.requirements),
            workdir=options.workdir,
            user=options.user,
            env=options.env,
            command=options.command,
        )

    @property
    def base_reference(self) -> str:
        """The base image by digest."""
        return f"{self.options.base.partition('@')[0]}@{self.base_digest}"

    @cached_property
    def source_digest(self) -> str:
        """Digest over the sources below `workdir`: an appended layer's diffID."""
        return self.context.layer(self.options.workdir).digest

    @cached_property
    def digest(self) -> str:
        """The plan's sha256, in hexadecimal."""
        options = self.options
        parts = {
            "base": self.base_digest,
            "command": list(options.command),
            "containerfile": self.containerfile,
            "created": options.created,
            "env": dict(options.env),
            "labels": dict(options.labels),
            "platform": options.platform,
            "requirements": list(options.requirements),
            "sources": self.source_digest,
            "user": options.user,
            "workdir": options.workdir,
        }
        # Compact, as the tags of images that are in registries.
        return digest_bytes(json.dumps(canonicalize(parts), separators=(",", ":")).encode())

    @property
    def tag(self) -> str:
        """The image's tag: the digest's head."""
        return self.digest[:_TAG_LENGTH]

    @property
    def created_text(self) -> str:
        """The creation time in RFC 3339, UTC."""
        return datetime.fromtimestamp(self.options.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def identity_labels(self) -> dict[str, str]:
        """The labels that identify an image in a registry as this plan's."""
        return {SOURCE_LABEL: self.source_digest, PLAN_LABEL: f"sha256:{self.digest}"}

    @property
    def all_labels(self) -> dict[str, str]:
        """Every image label: the user's, OCI's annotations and the identity."""
        return {
            **self.options.labels,
            "org.opencontainers.image.base.name": self.options.base,
            "org.opencontainers.image.base.digest": self.base_digest,
            "org.opencontainers.image.created": self.created_text,
            **self.identity_labels,
        }

    def write_context(self, file: BinaryIO) -> None:
        """Write the build context's tar: Containerfile, `requirements.txt` if there are any, and `sources/`.

        It needs constant memory; the same plan gives the same bytes.
        """
        extra = [ContextEntry.from_bytes(CONTAINERFILE_FILE, self.containerfile.encode())]
        if self.options.requirements:
            lines = "".join(f"{line}\n" for line in self.options.requirements)
            extra.append(ContextEntry.from_bytes(REQUIREMENTS_FILE, lines.encode()))
        self.context.write_tar(file, prefix=SOURCES_FOLDER, extra=extra)


def describe_plan(plan: ImagePlan) -> dict[str, Any]:
    """Return a dry run's content as JSON-ready values.

    They are `tag`, `base` (by digest), `files` (path, mode and size in bytes each), `size_bytes`, `containerfile`,
    `requirements`, `notes` (how the sources were collected) and `warnings`.
    """
    return {
        "tag": plan.tag,
        "base": plan.base_reference,
        "files": [
            {"path": entry.path, "mode": f"-> {entry.link}" if entry.link else f"{entry.mode:04o}", "size": entry.size}
            for entry in plan.context.entries
        ],
        "size_bytes": plan.context.size_bytes,
        "containerfile": plan.containerfile,
        "requirements": list(plan.options.requirements),
        "notes": list(plan.context.notes),
        "warnings": [
            f"env {name}: readable by everyone who can pull the image; give secrets to the job instead"
            for name in sorted(plan.options.env)
            if _SECRET_VARIABLE.search(name)
        ],
    }


def _list_workdir_errors(workdir: str) -> list[str]:
    parts = workdir.split("/")
    if not (_WORKDIR.fullmatch(workdir) or workdir == "/") or {".", ".."} & set(parts):
        return [f"workdir: must be an absolute folder such as /app, got {workdir!r}"]
    if workdir == "/" or (len(parts) == 2 and parts[1] in _SYSTEM_FOLDERS) or parts[1] in _PRIVATE_FOLDERS:
        return [f"workdir: {workdir} belongs to the base image; use a folder of its own, such as /app"]
    return []
