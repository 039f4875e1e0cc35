"""Builds on a cluster: a Job without privileges that builds, pushes and is removed again, whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import secrets as randomness
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.images.builders.append import AppendBuilder
from kfp_mindspore.images.builders.base import Builder
from kfp_mindspore.images.builders.cluster_append import write_plan
from kfp_mindspore.images.builders.cluster_job import (
    APPEND,
    BUILDAH,
    BUILDKIT,
    JobSettings,
    check_secrets,
    describe_pod,
    write_config_map,
    write_job,
)
from kfp_mindspore.images.builders.cluster_layout import CONTAINER, FETCH_CONTAINER, PLAN_FILE
from kfp_mindspore.images.builders.cluster_log import read_log
from kfp_mindspore.images.builders.cluster_pods import Ending, wait_for_end, wait_for_start
from kfp_mindspore.images.builders.cluster_registry import write_registry_files
from kfp_mindspore.images.builders.cluster_script import (
    write_append_command,
    write_buildah_script,
    write_buildkit_script,
)
from kfp_mindspore.images.builders.context_store import ContextPlace, PlacedContext, Site, place_context
from kfp_mindspore.images.plan import ALL_PLATFORMS, ImagePlan
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.images import find_image, inspect_image
from kfp_mindspore.images.result import BuildResult, OnProgress, Progress
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.resources import Resource
from kfp_mindspore.settings import IMAGE_VARIABLE

TOOLS = ("auto", BUILDAH, BUILDKIT, APPEND)
DEFAULT_IMAGES = {BUILDAH: "quay.io/buildah/stable:v1.37.3", BUILDKIT: "docker.io/moby/buildkit:v0.29.0-rootless"}

JOBS = Resource("batch", "v1", "jobs", "Job")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LOG_ENDED_SECONDS = 120.0
_OVERDUE = "DeadlineExceeded"


@dataclass(frozen=True)
class _Task:
    """One build: what it makes, by which tool, under which name."""

    plan: ImagePlan
    target: Reference
    tool: str
    site: Site


class ClusterBuilder(Builder):
    """Builds and pushes by a Kubernetes Job that has no privileges.

    Images that only add sources are made by the append builder in this package's image; the others by Buildah in a
    chroot, or by BuildKit without root. The registry is also asked from where this runs, before and after.

    Args:
        registry: How registries are reached; its `push_secret` and `pull_secrets` are Secrets of the build's namespace.
        namespace: Namespace of the Job; by default that of the kubeconfig's context, or of the pod.
        kubeconfig: The cluster; default KUBECONFIG, then ~/.kube/config, then the pod's account.
        context: Context of the kubeconfig.
        tool: `buildah`, `buildkit`, `append`, or `auto`: append where it can, else Buildah.
        image: Image with the tool; by default Buildah's or BuildKit's own.
        package_image: Image with this package, for `append` and for contexts in an object store; by default
            $KFP_MINDSPORE_IMAGE.
        place: Where contexts go that are too large for a ConfigMap: `ClaimPlace` or `ObjectStorePlace`.
        build_args: Values of the Containerfile's ARG lines. They can be read in the image's history: no secrets.
        secrets: Secrets for `RUN --mount=type=secret,id=NAME`: `SECRET/KEY` by NAME.
        storage_driver: Of Buildah: `vfs` works on every node; `overlay` is faster and needs /dev/fuse in the pod.
        job: What else is to be said about the pod.
        start_seconds: Seconds the pod may take to start, image pulls included.

    Raises:
        UserError: The tool is unknown, or a secret is not named as SECRET/KEY.
    """

    def __init__(
        self,
        registry: RegistryConfig | None = None,
        *,
        namespace: str = "",
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        tool: str = "auto",
        image: str = "",
        package_image: str = "",
        place: ContextPlace | None = None,
        build_args: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        storage_driver: str = "vfs",
        job: JobSettings | None = None,
        start_seconds: float = 600.0,
    ) -> None:
        super().__init__(registry)
        if tool not in TOOLS:
            raise UserError(f"tool: must be one of {', '.join(TOOLS)}, got {tool!r}")
        self.tool = tool
        self.image = image
        self.package_image = package_image or os.environ.get(IMAGE_VARIABLE, "")
        self.place = place
        self.build_args = dict(build_args or {})
        self.secrets = dict(secrets or {})
        check_secrets(self.secrets)
        self.storage_driver = storage_driver
        self.job = job or JobSettings()
        self.start_seconds = start_seconds
        self._namespace = namespace
        self._cluster = Cluster(kubeconfig, context)

    def check(self, plan: ImagePlan) -> None:
        """Refuse what the tool cannot do, and an append without an image that can run it.

        Raises:
            UserError: As above.
        """
        tool = self.choose_tool(plan)
        if tool == APPEND:
            AppendBuilder(self.registry).check(plan)
            if self.secrets or self.build_args:
                raise UserError("secrets, build_args: the append builder runs no commands that could use them")
            if not (self.image or self.package_image):
                raise UserError(
                    "package_image: the append builder runs in an image with kfp-mindspore, and none is named",
                    hint="Build one with `kfp-mindspore image runtime` and set KFP_MINDSPORE_IMAGE, or take Buildah.",
                )
        elif plan.platform == ALL_PLATFORMS:
            raise UserError(
                f"platform: {tool} makes one platform at a time here, got 'all'",
                hint="Name one such as linux/amd64, or take the append builder.",
            )

    def choose_tool(self, plan: ImagePlan) -> str:
        """Return the tool that builds a plan."""
        if self.tool != "auto":
            return self.tool
        only_sources = not (plan.replaced or plan.requirements or self.secrets or self.build_args)
        return APPEND if only_sources and (self.image or self.package_image) else BUILDAH

    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Run the Job to its end, remove it and return what it pushed.

        Raises:
            UserError: The pod cannot start: an image or a Secret is missing.
            ProcessFailedError: The build failed; the message names the step, `log` has its last lines.
        """
        name = f"image-build-{plan.tag[:12]}-{randomness.token_hex(3)}"
        task = self._prepare(plan, target, name, self._namespace or self._cluster.namespace)
        with place_context(plan, self.place, task.site) as placed:
            job = self._write_job(task, placed)
            base = parse_reference(plan.base, field="base")
            hosts = (self.registry.locate(base).host, target.host)
            files = {**write_registry_files(self.registry, hosts), PLAN_FILE: write_plan(plan)}
            with self._running(task, job, files, placed.data):
                digest = self._follow(task, on_progress)
        return self._describe(task, digest)

    def write_manifest(self, plan: ImagePlan, target: Reference, archive: str = "context.tar.gz") -> dict[str, Any]:
        """Return the Job as it would be created for a small context, such as to read it; nothing is created."""
        task = self._prepare(plan, target, f"image-build-{plan.tag[:12]}", self._namespace or "default")
        return self._write_job(task, PlacedContext(archive))

    def _prepare(self, plan: ImagePlan, target: Reference, name: str, namespace: str) -> _Task:
        tool = self.choose_tool(plan)
        image = self.image or (self.package_image if tool == APPEND else DEFAULT_IMAGES[tool])
        architecture = "" if plan.platform == ALL_PLATFORMS else plan.platform.split("/")[1]
        pod = describe_pod(self.job, self.registry.pull_secrets, architecture)
        return _Task(plan, target, tool, Site(self._cluster, namespace, name, image, self.package_image, pod))

    def _write_job(self, task: _Task, placed: PlacedContext) -> dict[str, Any]:
        return write_job(
            task.site.name,
            task.tool,
            task.site.image,
            self._write_command(task, placed.archive),
            placed,
            self.job,
            task.site.pod,
            push_secret=self.registry.push_secret,
            pull_secrets=self.registry.pull_secrets,
            secrets=self.secrets,
        )

    def _write_command(self, task: _Task, archive: str) -> Sequence[str]:
        if task.tool == APPEND:
            return write_append_command(str(task.target), archive)
        labels = task.plan.all_labels
        if task.tool == BUILDKIT:
            script = write_buildkit_script(
                task.plan,
                str(task.target),
                archive,
                labels=labels,
                build_args=self.build_args,
                secrets=sorted(self.secrets),
                pushes=bool(self.registry.push_secret),
            )
        else:
            script = write_buildah_script(
                task.plan,
                str(task.target),
                archive,
                labels=labels,
                build_args=self.build_args,
                secrets=sorted(self.secrets),
                pulls=len(self.registry.pull_secrets),
                pushes=bool(self.registry.push_secret),
                own_ca=self.registry.ca_file is not None,
                storage_driver=self.storage_driver,
            )
        return ["/bin/sh", "-c", script]

    @contextlib.contextmanager
    def _running(
        self, task: _Task, job: Mapping[str, Any], files: Mapping[str, str], data: Mapping[str, bytes]
    ) -> Iterator[None]:
        """Create the Job and its ConfigMap, and remove both however the block ends."""
        namespace, name = task.site.namespace, task.site.name
        try:
            created = self._cluster.create(JOBS, job, namespace)
            # The pod waits for the ConfigMap; the other way round it would be left over without an owner.
            self._cluster.create(CONFIG_MAPS, write_config_map(name, files, data, created), namespace)
            yield
        except BaseException:
            # What went wrong is worth more than what is left over: the cluster removes it by itself after a while.
            with contextlib.suppress(KfpMindSporeError):
                self._remove(namespace, name)
            raise
        self._remove(namespace, name)

    def _remove(self, namespace: str, name: str) -> None:
        for resource in (JOBS, CONFIG_MAPS):
            with contextlib.suppress(NotFoundError):
                self._cluster.delete(resource, name, namespace)

    def _follow(self, task: _Task, on_progress: OnProgress) -> str:
        """Follow the Job's pod to its end and return the digest that it left."""
        namespace, labels = task.site.namespace, f"job-name={task.site.name}"
        pod: Mapping[str, Any] = {}
        for said in wait_for_start(self._cluster, namespace, labels, self.start_seconds):
            if isinstance(said, str):
                on_progress(Progress("Wait for the pod", text=said))
            else:
                pod = said
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        lines = self._cluster.stream_log(name, namespace, container=CONTAINER, uid=uid)
        failure = read_log(task.tool, lines, on_progress)
        try:
            ending = wait_for_end(self._cluster, namespace, labels, _LOG_ENDED_SECONDS)
        except ProcessFailedError as error:
            raise self._find_overdue(task, failure) or error from None
        if ending.exit_code != 0:
            raise self._explain(task, name, ending, failure)
        found = _DIGEST.search(ending.message)
        if found is None:
            raise ProcessFailedError(f"pod {name}: ended without naming the image's digest: {ending.message!r}")
        return found[0]

    def _explain(self, task: _Task, pod: str, ending: Ending, failure: ProcessFailedError) -> KfpMindSporeError:
        if ending.container == FETCH_CONTAINER:
            said = self._cluster.read_log(pod, task.site.namespace, container=FETCH_CONTAINER, last=5).strip()
            return ProcessFailedError(f"pod {pod}: the context could not be fetched: {said or ending.message}")
        if overdue := self._find_overdue(task, failure):
            return overdue
        if ending.reason not in ("Error", "Completed", ""):
            text = f"{failure.message}: the pod was ended: {ending.reason} {ending.message}".rstrip()
            hint = "Ask for more: --memory, or JobSettings(resources=…)." if ending.reason == "OOMKilled" else ""
            return ProcessFailedError(text, hint=hint, log=failure.log)
        return ProcessFailedError(f"{failure.message} (exit code {ending.exit_code})", log=failure.log)

    def _find_overdue(self, task: _Task, failure: ProcessFailedError) -> ProcessFailedError | None:
        """Return the error for a build that the cluster ended at its deadline, which the pod itself does not tell."""
        try:
            job = self._cluster.get(JOBS, task.site.name, task.site.namespace)
        except NotFoundError:
            return None
        if not any(item.get("reason") == _OVERDUE for item in (job.get("status") or {}).get("conditions") or []):
            return None
        return ProcessFailedError(
            f"{failure.message}: the build had {self.job.deadline_seconds} s and was ended by the cluster ({_OVERDUE})",
            hint="Give it more: --deadline-seconds, or JobSettings(deadline_seconds=…).",
            log=failure.log,
        )

    def _describe(self, task: _Task, digest: str) -> BuildResult:
        found = find_image(task.target, task.plan.labels_of_identity, self.registry)
        if found is None or found.digest != digest:
            has = found.digest if found else "no such tag"
            raise KfpMindSporeError(
                f"{task.target}: the build pushed {digest}, the registry has {has}",
                hint="Another push took the tag meanwhile; build again.",
            )
        platform = "" if task.plan.platform == ALL_PLATFORMS else task.plan.platform
        base = parse_reference(task.plan.base, field="base").with_digest(task.plan.base_digest)
        known = {digest for digest, _ in inspect_image(base, self.registry, platform=platform).layers}
        pushed = inspect_image(parse_reference(found.reference), self.registry, platform=platform).layers
        sent = [size for digest, size in pushed if digest not in known]
        return replace(
            found,
            built=True,
            layers_sent=len(sent),
            layers_reused=len(pushed) - len(sent),
            sent_bytes=sum(sent),
        )
