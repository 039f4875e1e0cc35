"""A pipeline step's image build: from an artifact or the pipeline's own files to a digest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.msjob.build import PodPatch
from kfp_mindspore.settings import LOCAL, PLACEHOLDER_IMAGE, get_backend_name, get_image
from kfp_mindspore.steps.handover.step_pod import POD_NAME_VARIABLE, read_step_pod
from kfp_mindspore.steps.handover.task_config import read_task_config

if TYPE_CHECKING:
    from kfp import dsl

    from kfp_mindspore.images import RegistryConfig
    from kfp_mindspore.images.builders.base import Builder
    from kfp_mindspore.images.result import BuildResult
    from kfp_mindspore.images.sources.context import BuildContext

BUILDERS = ("append", "cluster", "docker")
_CONTEXT_STORE_OPTIONS = ("claim", "claim_path", "store", "store_endpoint")
# Options that a pipeline can set; the step's own files and hosts are not included.
_BUILDER_OPTIONS = {
    "append": (),
    "cluster": (
        *("image", "namespace", "build_args", "secrets", "service_account", "start_seconds"),
        *_CONTEXT_STORE_OPTIONS,
    ),
    "docker": ("host", "build_args", "network"),
}


def build_step_image(
    destination: str,
    *,
    sources: str = "",
    files: Mapping[str, str] | None = None,
    base: str = "",
    requirements: Sequence[str] = (),
    containerfile: str = "",
    command: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    platform: str = "linux/amd64",
    builder: str = "append",
    builder_options: Mapping[str, Any] | None = None,
    registry: Mapping[str, Any] | None = None,
    task_config: dsl.TaskConfig | None = None,
) -> BuildResult | None:
    """Build and push an image; a local run without a destination builds none.

    Args:
        destination: Repository to push to; may be empty in a local run.
        sources: Source folder or file.
        files: Further sources, text by path.
        base: Base image; default: the steps' image.
        requirements: pip requirements.
        containerfile: Containerfile text that replaces the generated one.
        command: The image's command.
        env: The image's environment variables.
        platform: Such as `linux/amd64`.
        builder: `append`, `cluster` or `docker`.
        builder_options: Builder arguments by name.
        registry: RegistryConfig arguments by name.
        task_config: What the pipeline has set on the task: the builder `cluster` gives its resources, node selector and
            tolerations to the build pod.

    Returns:
        The result; None in a local run without a destination.

    Raises:
        ValidationError: An option is unknown.
        UserError: There is nothing to build, nowhere to push it to, or no base image.
    """
    if not destination:
        if get_backend_name() != LOCAL:
            raise UserError("destination: is missing: the repository that the cluster pulls the image from")
        print("build_image: no destination is given, and jobs on this machine run without an image: nothing to build")
        return None
    from kfp_mindspore.images import ImageOptions, make_plan
    from kfp_mindspore.images.progress import ProgressPrinter

    base = get_image("" if base == PLACEHOLDER_IMAGE else base) or PLACEHOLDER_IMAGE
    if base == PLACEHOLDER_IMAGE:
        raise UserError(
            "base: is the placeholder of a pipeline whose image was not set",
            hint="Name a base image, or give the pipeline its own with --image or KFP_MINDSPORE_IMAGE.",
        )
    made = _make_builder(builder, builder_options or {}, _make_registry(registry or {}), read_task_config(task_config))
    options = ImageOptions(
        base=base,
        platform=platform,
        requirements=tuple(requirements),
        containerfile=containerfile,
        env=dict(env or {}),
        command=tuple(command),
    )
    plan = make_plan(_collect(sources, files or {}), options, made)
    for note in plan.context.notes:
        print(note)
    result = made.build(plan, destination, on_progress=ProgressPrinter())
    print(f"{result.reference}: {'built and pushed' if result.built else 'exists already, nothing was sent'}")
    return result


def _collect(sources: str, files: Mapping[str, str]) -> BuildContext:
    from kfp_mindspore.images.sources.context import BuildContext
    from kfp_mindspore.images.sources.entry import ContextEntry
    from kfp_mindspore.images.sources.folder import collect_folder

    added = [ContextEntry.from_bytes(path, str(text).encode()) for path, text in files.items()]
    path = Path(sources) if sources else None
    if path is not None and path.is_dir():
        folder, taken = collect_folder(path), {entry.path for entry in added}
        kept = [entry for entry in folder.entries if entry.path not in taken]
        return BuildContext([*kept, *added], notes=folder.notes)
    if path is not None and path.is_file():
        added.append(ContextEntry(path.name, path.stat().st_size, source=path))
    elif path is not None:
        raise UserError(f"sources: {path}: no such folder or file")
    if not added:
        raise UserError("sources, files: one of them must name the files of the image")
    return BuildContext(added)


def _make_registry(given: Mapping[str, Any]) -> RegistryConfig:
    from kfp_mindspore.images import RegistryConfig

    _refuse_unknown("registry", given, [entry.name for entry in fields(RegistryConfig)])
    arguments = dict(given)
    for name in ("insecure", "pull_secrets"):
        if name in arguments:
            arguments[name] = tuple(arguments[name])
    for name in ("ca_file", "docker_config"):
        if arguments.get(name):
            arguments[name] = Path(arguments[name])
    if "attempts" in arguments:
        # A pipeline's struct parameters hold floats.
        arguments["attempts"] = int(arguments["attempts"])
    return RegistryConfig(**arguments)


def _make_builder(name: str, given: Mapping[str, Any], registry: RegistryConfig, patch: PodPatch) -> Builder:
    if name not in BUILDERS:
        raise UserError(f"builder: must be one of {', '.join(BUILDERS)}, got {name!r}")
    _refuse_unknown("builder_options", given, _BUILDER_OPTIONS[name])
    if name == "cluster":
        from kfp_mindspore.images.builders.cluster import ClusterBuilder
        from kfp_mindspore.images.builders.cluster_job import JobSettings
        from kfp_mindspore.images.builders.context_store import make_context_store

        stored = {key: str(given[key]) for key in _CONTEXT_STORE_OPTIONS if key in given}
        others = {key: value for key, value in given.items() if key not in (*stored, "service_account")}
        job = JobSettings(
            service_account=str(given.get("service_account", "")),
            resources=patch.resources,
            node_selector=patch.node_selector,
            tolerations=patch.tolerations,
            owner=_read_owner(str(given.get("namespace", ""))),
        )
        return ClusterBuilder(registry, context_store=make_context_store(**stored), job=job, **others)
    if name == "docker":
        from kfp_mindspore.images.builders.docker import DockerBuilder

        return DockerBuilder(registry, **given)
    from kfp_mindspore.images.builders.append import AppendBuilder

    return AppendBuilder(registry)


def _read_owner(namespace: str) -> Mapping[str, Any] | None:
    """Return an owner reference to the run's Workflow; None outside a run, and for a build in another namespace."""
    from kfp_mindspore.kube.cluster import Cluster

    if POD_NAME_VARIABLE not in os.environ:
        return None
    pod = read_step_pod(Cluster())
    # An owner in another namespace counts as deleted: the garbage collector would delete the Job.
    return pod.workflow if pod is not None and namespace in ("", pod.namespace) else None


def _refuse_unknown(field: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    expected = f"one of {', '.join(known)}" if known else "nothing: this builder has no options"
    errors = [f"{field}.{name}: is unknown, expected {expected}" for name in given if name not in known]
    if errors:
        raise ValidationError(errors)
