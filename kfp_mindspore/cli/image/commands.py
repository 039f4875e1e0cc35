"""`kfp-mindspore image`: build images, inspect images in registries, build the runtime image."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfp_mindspore.cli.image.options import add_builder_options, add_registry_options, name_options
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.output import PairType, add_json_option, print_json, print_table
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.images import RegistryConfig
    from kfp_mindspore.images.builders.base import Builder
    from kfp_mindspore.images.plan import ImagePlan
    from kfp_mindspore.images.result import BuildResult

_FILE = click.Path(path_type=Path)
_DRY_RUN = "Print files, sizes and the Containerfile; build nothing. Resolves the base image's digest."


@click.group(
    cls=StrictGroup,
    epilog="Example: kfp-mindspore image build train/ --base registry/python:3.11 --to registry/team/train",
)
def image() -> None:
    """Build images from notebooks, scripts and folders; inspect images; build the runtime image."""


@image.command(
    epilog="""\b
Examples:
  kfp-mindspore image build train/ --base registry/python:3.11 --to registry/team/train --command 'python3 train.py'
  kfp-mindspore image build lenet.ipynb --base registry/python:3.11 --to registry/team/lenet --builder docker
  kfp-mindspore image build train.py --base registry/python:3.11 --dry-run""",
)
@click.argument("source", metavar="SOURCE")
@click.option("--base", required=True, help="Base image.")
@click.option("--to", "destination", default="", metavar="HOST/NAME", help="Repository to push to, without a tag.")
@click.option("--requirement", "requirements", multiple=True, help="A pip requirement; repeatable.")
@click.option("--requirements-file", type=_FILE, help="pip requirements, one a line.")
@click.option("--containerfile", type=_FILE, help="Containerfile that replaces the generated one.")
@click.option("--command", default="", help="The image's command. [default: that of the sources]")
@click.option(
    "--env",
    type=PairType(),
    multiple=True,
    help="Variable of the image; search paths precede the base's; repeatable.",
)
@click.option("--label", "labels", type=PairType(), multiple=True, help="Label of the image; repeatable.")
@click.option("--workdir", default="/app", show_default=True, help="Folder of the sources in the image.")
@click.option("--user", default="1000:1000", show_default=True, help="uid:gid of the command.")
@click.option("--platform", default="linux/amd64", show_default=True, help="Platform; all keeps the base's (append).")
@click.option("--cell-tag", "cell_tags", multiple=True, help="Notebook: convert cells with this tag. [default: image]")
@click.option("--include", multiple=True, help="Folder: include likely secrets of this pattern; repeatable.")
@click.option("--dry-run", is_flag=True, help=_DRY_RUN)
@add_builder_options("append")
@add_json_option
def build(
    source: str,
    base: str,
    destination: str,
    requirements: tuple[str, ...],
    requirements_file: Path | None,
    containerfile: Path | None,
    command: str,
    env: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    workdir: str,
    user: str,
    platform: str,
    cell_tags: tuple[str, ...],
    include: tuple[str, ...],
    dry_run: bool,
    builder: Builder,
    as_json: bool,
) -> None:
    """Build an image of SOURCE over a base image and push it.

    SOURCE is a folder, a SCRIPT.py, a NOTEBOOK.ipynb, or MODULE:FUNCTION.

    The tag is derived from the image's content: if the registry has it, nothing is built or sent.
    """
    from kfp_mindspore.images import ImageOptions, make_plan
    from kfp_mindspore.images.requirements import read_requirements
    from kfp_mindspore.images.sources.argument import collect_source

    if not destination and not dry_run:
        raise UserError("--to: is missing: the repository to push to", hint="--dry-run needs none.")
    _check_names(destination, base, platform)
    words = _split_command(command)
    context = collect_source(source, command=words, tags=cell_tags, include=include)
    with name_options():
        options = ImageOptions(
            base=base,
            platform=platform,
            requirements=(*requirements, *(read_requirements(requirements_file) if requirements_file else ())),
            containerfile=_read_text(containerfile, "--containerfile") if containerfile else "",
            workdir=workdir,
            user=user,
            env=dict(env),
            command=words,
            labels=dict(labels),
        )
    plan = make_plan(context, options, builder)
    if dry_run:
        _describe(plan, as_json)
        return
    _print_notes(plan)
    _print_result(_run(builder, plan, destination), as_json)


@image.command(
    epilog="Example: kfp-mindspore image runtime --to registry/team/kfp-mindspore --builder cluster --store s3://bucket/builds"
)
@click.option("--to", "destination", default="", metavar="HOST/NAME", help="Repository to push to, without a tag.")
@click.option("--base", default="", help="Base image: Python with venv. [default: docker.io/library/python]")
@click.option(
    "--extra",
    "extras",
    multiple=True,
    help="An extra of this package, replaces the default ones; repeatable.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "gpu", "ascend", "all"]),
    default="cpu",
    show_default=True,
    help="gpu and ascend keep MindSpore's plugin, and need a --base with CUDA or CANN; all keeps both (1.8 GB).",
)
@click.option("--wheel", type=_FILE, help="This package's wheel. [default: built from the checkout]")
@click.option("--constraints", type=_FILE, help="Pinned versions. [default: the checkout's, or those installed here]")
@click.option("--platform", default="linux/amd64", show_default=True, help="Platform.")
@click.option("--dry-run", is_flag=True, help=_DRY_RUN)
@add_builder_options("docker")
@add_json_option
def runtime(
    destination: str,
    base: str,
    extras: tuple[str, ...],
    device: str,
    wheel: Path | None,
    constraints: Path | None,
    platform: str,
    dry_run: bool,
    builder: Builder,
    as_json: bool,
) -> None:
    """Build the image of component steps and job pods: this package with MindSpore.

    Pass its reference to pipelines by --image or KFP_MINDSPORE_IMAGE. Pass a package index by
    --build-arg PIP_INDEX_URL=…, one with a login as a file by --secret pip=…
    """
    from kfp_mindspore.images import make_plan
    from kfp_mindspore.images.runtime.image import (
        DEFAULT_BASE,
        DEFAULT_EXTRAS,
        PIP_SECRET,
        check_base,
        make_runtime_context,
        make_runtime_options,
    )

    if not destination and not dry_run:
        raise UserError("--to: is missing: the repository to push to", hint="--dry-run needs none.")
    base = base or DEFAULT_BASE
    _check_names(destination, base, platform)
    check_base(base, device)
    # Before the wheel, which takes longer.
    digest = builder.resolve_base(base, platform)
    context = make_runtime_context(wheel, constraints)
    options = make_runtime_options(
        context,
        digest,
        base=base,
        platform=platform,
        extras=extras or DEFAULT_EXTRAS,
        device=device,
        pip_secret=PIP_SECRET in builder.secrets,
    )
    plan = make_plan(context, options, builder)
    if dry_run:
        _describe(plan, as_json)
        return
    _print_notes(plan)
    result = _run(builder, plan, destination)
    _print_result(result, as_json)
    if not as_json:
        click.echo(f"export KFP_MINDSPORE_IMAGE={result.reference}")


@image.command(epilog="Example: kfp-mindspore image inspect registry/team/train:3f2a --insecure registry")
@click.argument("reference")
@click.option("--platform", default="", help="Platform of the layers, for an image of several. [default: the first]")
@add_registry_options
@add_json_option
def inspect(reference: str, platform: str, registry: RegistryConfig, as_json: bool) -> None:
    """Print an image's digest, layers, environment and labels."""
    from kfp_mindspore.images.registry.images import inspect_image

    found = inspect_image(reference, registry, platform=platform)
    if as_json:
        print_json(found.to_json())
        return
    click.echo(f"{found.reference}: {found.size_bytes:,} bytes, {', '.join(found.platforms)}")
    for name, value in (
        ("created", found.created),
        ("user", found.user or "root"),
        ("workdir", found.workdir),
        ("command", shlex.join(found.command)),
    ):
        click.echo(f"{name}: {value}")
    click.echo()
    print_table([{"layer": digest, "bytes": f"{size:,}"} for digest, size in found.layers], ["layer", "bytes"])
    for title, lines in (
        ("environment", found.env),
        ("labels", tuple(f"{key}={value}" for key, value in sorted(found.labels.items()))),
    ):
        if lines:
            click.echo(f"\n{title}:")
            for line in lines:
                click.echo(f"  {line}")


def _check_names(destination: str, base: str, platform: str) -> None:
    """Validate the images' names and the platform before the first request."""
    from kfp_mindspore.images.plan import check_platform
    from kfp_mindspore.images.reference import parse_reference, parse_repository

    if destination:
        parse_repository(destination, field="--to")
    parse_reference(base, field="--base")
    check_platform(platform, field="--platform")


def _split_command(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        reason = "a quotation mark is not closed"
        with contextlib.suppress(ValueError):
            # A backslash at the end is complete with a character behind it; an open quotation stays open.
            shlex.split(f"{command}x")
            reason = "a backslash stands at its end"
        raise UserError(
            f"--command: must be words as a shell reads them, got {command!r}: {reason}",
            hint="Quote it, such as --command 'python3 train.py'.",
        ) from None


def _run(builder: Builder, plan: ImagePlan, destination: str) -> BuildResult:
    from kfp_mindspore.cli.image.progress import BuildDisplay

    with BuildDisplay() as display:
        return builder.build(plan, destination, on_progress=display)


def _describe(plan: ImagePlan, as_json: bool) -> None:
    from kfp_mindspore.images import describe_plan

    described = describe_plan(plan)
    if as_json:
        print_json(described)
        return
    rows = [{"file": file["path"], "mode": file["mode"], "bytes": f"{file['size']:,}"} for file in described["files"]]
    print_table(rows, ["file", "mode", "bytes"])
    total = f"{len(rows)} files, {described['size_bytes']:,} bytes"
    click.echo(f"\n{total}; base {described['base']}; tag {described['tag']}\n")
    click.echo(described["containerfile"].rstrip())
    _print_notes(plan)


def _print_notes(plan: ImagePlan) -> None:
    from kfp_mindspore.images import describe_plan

    described = describe_plan(plan)
    for note in described["notes"]:
        click.echo(note, err=True)
    for warning in described["warnings"]:
        click.echo(f"Warning: {warning}", err=True)


def _print_result(result: BuildResult, as_json: bool) -> None:
    if as_json:
        print_json(result.to_json())
        return
    outcome = "built and pushed" if result.built else "exists already, nothing was sent"
    click.echo(f"{result.reference}: {outcome}")
    click.echo(
        f"tag {result.tag}; {result.size_bytes:,} bytes; {result.layers_sent} layers sent "
        f"({result.sent_bytes:,} bytes), {result.layers_reused} reused; {result.seconds:.1f} s"
    )


def _read_text(file: Path, option: str) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option}: {file}: {getattr(error, 'strerror', None) or 'is not UTF-8 text'}") from None
