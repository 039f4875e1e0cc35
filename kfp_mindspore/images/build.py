"""From sources to an image: the plan, its description without building, and the build."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.images.builders.base import Builder, ignore_progress
from kfp_mindspore.images.containerfile import check_containerfile, generate_containerfile
from kfp_mindspore.images.context import BuildContext
from kfp_mindspore.images.plan import ImagePlan, check_platform, check_user, check_workdir
from kfp_mindspore.images.reference import parse_repository
from kfp_mindspore.images.requirements import merge_requirements
from kfp_mindspore.images.result import BuildResult, OnProgress

EPOCH_VARIABLE = "SOURCE_DATE_EPOCH"
_SECRET_NAME = re.compile(r"(?i)(^|_)(password|passwd|secret|token|api_?key|access_?key|credentials)(_|$)")


@dataclass(frozen=True)
class ImageOptions:
    """What an image is besides its sources.

    Args:
        base: Name of the base image.
        platform: Such as `linux/amd64`; `all` keeps every platform of the base (append builder only).
        requirements: pip requirements, besides those that the sources name.
        containerfile: Text of a Containerfile that takes the generated one's place; an empty text generates it.
        workdir: Absolute folder of the sources.
        user: `uid:gid` the image runs as; an empty text keeps the base image's.
        env: Environment variables.
        command: What the image runs; by default what the sources say, else what the base image does.
        labels: Labels of your own.
        created: Time of creation in seconds since 1970; `$SOURCE_DATE_EPOCH` by default, else 0: a time of its own
            would make every build another image.
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
    created: int | None = None


@dataclass(frozen=True)
class PlanDescription:
    """What a dry run shows.

    Args:
        tag: The tag that the image would get.
        base: The base image by digest.
        files: Path, mode and size in bytes of each file of the sources.
        size_bytes: Bytes of all files.
        containerfile: The Containerfile.
        requirements: The requirements it installs.
        notes: What was found and done on the way.
        warnings: What a person should look at.
    """

    tag: str
    base: str
    files: tuple[tuple[str, str, int], ...]
    size_bytes: int
    containerfile: str
    requirements: tuple[str, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {
            **{name: getattr(self, name) for name in ("tag", "base", "size_bytes", "containerfile")},
            "files": [{"path": path, "mode": mode, "size": size} for path, mode, size in self.files],
            **{name: list(getattr(self, name)) for name in ("requirements", "notes", "warnings")},
        }


def make_plan(context: BuildContext, options: ImageOptions, builder: Builder) -> ImagePlan:
    """Return what an image is made of; the base image's digest is asked for, nothing is built.

    Args:
        context: The sources.
        options: What the image is besides them.
        builder: Who would build it: it knows where the base image is.

    Raises:
        UserError: An option is wrong, or a requirement holds a login.
        NotFoundError: There is no such base image.
    """
    # First what is wrong here: the registry may take long to answer.
    check_platform(options.platform)
    check_workdir(options.workdir)
    check_user(options.user)
    if options.containerfile:
        check_containerfile(options.containerfile)
    requirements = merge_requirements(options.requirements, context.requirements)
    base = options.base.strip()
    digest = builder.resolve_base(base, options.platform)
    command = tuple(options.command or context.command)
    containerfile = options.containerfile or generate_containerfile(
        base,
        digest,
        requirements=requirements,
        workdir=options.workdir,
        user=options.user,
        env=options.env,
        command=command,
    )
    return ImagePlan(
        context=context,
        base=base,
        base_digest=digest,
        platform=options.platform,
        requirements=requirements,
        containerfile=containerfile,
        replaced=bool(options.containerfile),
        workdir=options.workdir,
        user=options.user,
        env=dict(options.env),
        command=command,
        labels=dict(options.labels),
        created=_find_epoch() if options.created is None else options.created,
    )


def build_image(
    context: BuildContext,
    destination: str,
    options: ImageOptions,
    builder: Builder,
    *,
    on_progress: OnProgress = ignore_progress,
) -> BuildResult:
    """Build an image of sources and push it, unless the registry has it.

    Args:
        context: The sources, from `collect_folder`, `convert_notebook`, `collect_function` or `collect_script`.
        destination: Repository to push to, `host/name`.
        options: What the image is besides its sources.
        builder: Who builds it.
        on_progress: Called with what moves.

    Raises:
        UserError: Something that was asked for is wrong, or credentials are.
        KfpMindSporeError: The build or the registry failed; no tag was set.
    """
    parse_repository(destination)
    return builder.build(make_plan(context, options, builder), destination, on_progress=on_progress)


def describe_plan(plan: ImagePlan) -> PlanDescription:
    """Return what a dry run shows of a plan."""
    name = plan.base.partition("@")[0]
    return PlanDescription(
        tag=plan.tag,
        base=f"{name}@{plan.base_digest}",
        files=tuple(
            (entry.path, f"-> {entry.link}" if entry.link else f"{entry.mode:04o}", entry.size)
            for entry in plan.context.entries
        ),
        size_bytes=plan.context.size_bytes,
        containerfile=plan.containerfile,
        requirements=plan.requirements,
        notes=plan.context.notes,
        warnings=tuple(
            f"env {name}: readable by everyone who can pull the image; give secrets to the job instead"
            for name in sorted(plan.env)
            if _SECRET_NAME.search(name)
        ),
    )


def _find_epoch() -> int:
    text = os.environ.get(EPOCH_VARIABLE, "0")
    if not text.isascii() or not text.isdigit():
        raise UserError(f"{EPOCH_VARIABLE}: must be seconds since 1970, got {text!r}")
    return int(text)
