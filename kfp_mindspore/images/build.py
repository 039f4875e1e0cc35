"""From sources to an image: the plan and the build."""

from __future__ import annotations

from dataclasses import replace

from kfp_mindspore.images.builders.base import Builder
from kfp_mindspore.images.plan import ImageOptions, ImagePlan
from kfp_mindspore.images.progress import OnProgress, ignore_progress
from kfp_mindspore.images.reference import parse_repository
from kfp_mindspore.images.requirements import merge_requirements
from kfp_mindspore.images.result import BuildResult
from kfp_mindspore.images.sources.context import BuildContext


def make_plan(context: BuildContext, options: ImageOptions, builder: Builder) -> ImagePlan:
    """Return an image's plan; the base image's digest is resolved, nothing is built.

    Args:
        context: The sources.
        options: The image's options.
        builder: The builder, which resolves the base image.

    Raises:
        UserError: A requirement holds a login.
        NotFoundError: There is no such base image.
    """
    resolved = replace(
        options,
        base=options.base.strip(),
        requirements=merge_requirements(options.requirements, context.requirements),
        command=tuple(options.command or context.command),
    )
    return ImagePlan(context, resolved, builder.resolve_base(resolved.base, resolved.platform))


def build_image(
    context: BuildContext,
    destination: str,
    options: ImageOptions,
    builder: Builder,
    *,
    on_progress: OnProgress = ignore_progress,
) -> BuildResult:
    """Build an image and push it, unless the registry has it.

    Args:
        context: The sources, from `collect_folder`, `convert_notebook`, `collect_function` or `collect_script`.
        destination: Repository to push to, `host/name`.
        options: The image's options.
        builder: The builder.
        on_progress: Called with the progress.

    Raises:
        UserError: An argument is invalid, or the registry refuses the login.
        KfpMindSporeError: The build or the registry failed; no tag was set.
    """
    parse_repository(destination)
    return builder.build(make_plan(context, options, builder), destination, on_progress=on_progress)
