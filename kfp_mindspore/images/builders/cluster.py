"""Builds on a cluster: a Kubernetes Job with rootless BuildKit that builds and pushes, and is deleted afterwards."""

from __future__ import annotations

import contextlib
import re
import secrets as randomness
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, ProcessFailedError, UserError
from kfp_mindspore.images.builders.base import Builder
from kfp_mindspore.images.builders.buildkit import read_plain_progress
from kfp_mindspore.images.builders.cluster_job import CONTAINER, JobSettings, check_secrets, make_job, make_script
from kfp_mindspore.images.builders.cluster_pods import wait_for_end, wait_for_start
from kfp_mindspore.images.builders.context_store import ContextStore, StoredContext, upload_context
from kfp_mindspore.images.plan import ALL_PLATFORMS, ImagePlan
from kfp_mindspore.images.progress import BuildProgress, OnProgress
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.registry.images import inspect_image
from kfp_mindspore.images.result import BuildResult
from kfp_mindspore.kube.cluster import Cluster
from kfp_mindspore.kube.pods import ContainerTermination, PodState
from kfp_mindspore.kube.resources import Resource

BUILDKIT_IMAGE = "docker.io/moby/buildkit:v0.29.0-rootless"
JOBS = Resource("batch", "v1", "jobs", "Job")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SIGNATURE = re.compile(r"\?X-Amz-[^\s\"']*")
_POD_END_SECONDS = 120.0
_DEADLINE_EXCEEDED = "DeadlineExceeded"


class ClusterBuilder(Builder):
    """Builds and pushes by a Kubernetes Job with rootless BuildKit.

    This process also reads the registry, before and after the build.

    Args:
        registry: How registries are reached; its `push_secret` and `pull_secrets` are Secrets in the build's namespace.
        context_store: Where the build context is stored for the pod: `PvcContextStore` or `S3ContextStore`.
        namespace: The Job's namespace; default: the kubeconfig context's, or the pod's.
        kubeconfig: The cluster; default: KUBECONFIG, then ~/.kube/config, then the pod's service account.
        context: The kubeconfig's context.
        image: Image with rootless BuildKit.
        build_args: Values for the Containerfile's ARG instructions; the image's history shows them, so no secrets.
        secrets: Secrets for `RUN --mount=type=secret,id=ID`: `SECRET/KEY` by id.
        job: The pod's scheduling and resources.
        start_seconds: Seconds for the pod to start, image pulls included.

    Raises:
        UserError: A secret is not SECRET/KEY.
    """

    def __init__(
        self,
        registry: RegistryConfig | None = None,
        *,
        context_store: ContextStore | None = None,
        namespace: str = "",
        kubeconfig: Path | str | None = None,
        context: str | None = None,
        image: str = BUILDKIT_IMAGE,
        build_args: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        job: JobSettings | None = None,
        start_seconds: float = 600.0,
    ) -> None:
        super().__init__(registry)
        self.context_store = context_store
        self.image = image
        self.build_args = dict(build_args or {})
        self.secrets = dict(secrets or {})
        check_secrets(self.secrets)
        self.job = job or JobSettings()
        self.start_seconds = start_seconds
        self._namespace = namespace
        self._cluster = Cluster(kubeconfig, context)

    def check(self, plan: ImagePlan) -> None:
        """Validate the platform and the context store.

        Raises:
            UserError: Several platforms at once, or no context store.
        """
        if plan.options.platform == ALL_PLATFORMS:
            raise UserError(
                "platform: the cluster builder builds one platform at a time, got 'all'",
                hint="Name one such as linux/amd64, or use the append builder.",
            )
        if self.context_store is None:
            raise UserError(
                "context store: missing: the build pod reads the build context from a claim or an object store",
                hint="Name one: --claim and --claim-path, or --store s3://BUCKET/PREFIX.",
            )

    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Run the Job to its end, delete it and return the pushed image.

        Raises:
            UserError: The pod cannot start: an image or a Secret is missing.
            ProcessFailedError: The build failed; the message names the step, `log` has its last lines.
        """
        assert self.context_store is not None
        name = f"image-build-{plan.tag[:12]}-{randomness.token_hex(3)}"
        namespace = self._namespace or self._cluster.namespace
        lifetime = int(self.start_seconds) + self.job.deadline_seconds
        with (
            upload_context(plan, self.context_store, name, lifetime) as stored,
            self._run_job(self.make_manifest(plan, target, stored, name), name, namespace),
        ):
            digest = self._follow(name, namespace, on_progress)
        return self._describe(plan, target, digest)

    def make_manifest(
        self, plan: ImagePlan, target: Reference, stored: StoredContext, name: str = "image-build"
    ) -> dict[str, Any]:
        """Return the Job manifest; nothing is created."""
        base = parse_reference(plan.options.base, field="base")
        script = make_script(
            plan,
            str(target),
            stored,
            registry=self.registry,
            hosts=(self.registry.locate(base).host, target.host),
            build_args=self.build_args,
            secrets=list(self.secrets),
        )
        return make_job(
            name,
            self.image,
            script,
            stored,
            self.job,
            architecture=plan.options.platform.split("/")[1],
            registry=self.registry,
            secrets=self.secrets,
        )

    @contextlib.contextmanager
    def _run_job(self, job: Mapping[str, Any], name: str, namespace: str) -> Iterator[None]:
        """Create the Job for a block, and delete it at the end."""
        try:
            self._cluster.create(JOBS, job, namespace)
            yield
        finally:
            # The Job's TTL deletes it when this fails.
            with contextlib.suppress(KfpMindSporeError):
                self._cluster.delete(JOBS, name, namespace)

    def _follow(self, job: str, namespace: str, on_progress: OnProgress) -> str:
        """Follow the Job's pod to its end and return the digest from its termination message."""
        labels = f"job-name={job}"
        pod: PodState | None = None
        for update in wait_for_start(self._cluster, namespace, labels, self.start_seconds):
            if isinstance(update, str):
                on_progress(BuildProgress("Wait for the pod", text=update))
            else:
                pod = update
        assert pod is not None
        lines = self._cluster.stream_log(pod.name, namespace, container=CONTAINER, uid=pod.uid)
        # BuildKit's download errors quote the presigned URL.
        redacted = (_SIGNATURE.sub("?…", line) for line in lines)
        step = "build"

        def track_step(progress: BuildProgress) -> None:
            nonlocal step
            step = progress.step
            on_progress(progress)

        failure = read_plain_progress(redacted, track_step)
        # BuildKit prints no error when the pod is killed: report the step that was running.
        failure = failure or ProcessFailedError(step)
        try:
            termination = wait_for_end(self._cluster, namespace, labels, _POD_END_SECONDS)
        except ProcessFailedError as error:
            raise self._get_deadline_error(job, namespace, failure) or error from None
        if termination.exit_code != 0:
            deadline_error = self._get_deadline_error(job, namespace, failure)
            raise deadline_error or _make_error(termination, failure)
        found = _DIGEST.search(termination.message)
        if found is None:
            raise ProcessFailedError(f"pod {pod.name}: no digest in its termination message: {termination.message!r}")
        return found[0]

    def _get_deadline_error(self, job: str, namespace: str, failure: ProcessFailedError) -> ProcessFailedError | None:
        """Return the error for a build that exceeded the Job's deadline: the pod's status does not show it."""
        try:
            found = self._cluster.get(JOBS, job, namespace)
        except NotFoundError:
            return None
        conditions = (found.get("status") or {}).get("conditions") or []
        if not any(item.get("reason") == _DEADLINE_EXCEEDED for item in conditions):
            return None
        return ProcessFailedError(
            f"{failure.message}: the build exceeded its deadline of {self.job.deadline_seconds} s",
            hint="Raise it: --deadline-seconds, or JobSettings(deadline_seconds=…).",
            log=failure.log,
        )

    def _describe(self, plan: ImagePlan, target: Reference, digest: str) -> BuildResult:
        result = self.verify_push(plan, target, digest)
        base = inspect_image(plan.base_reference, self.registry, platform=plan.options.platform)
        known = {layer for layer, _ in base.layers}
        pushed = inspect_image(result.reference, self.registry, platform=plan.options.platform).layers
        sent = [size for layer, size in pushed if layer not in known]
        return replace(result, layers_sent=len(sent), layers_reused=len(pushed) - len(sent), sent_bytes=sum(sent))


def _make_error(termination: ContainerTermination, failure: ProcessFailedError) -> ProcessFailedError:
    if termination.reason in ("Error", "Completed", ""):
        return ProcessFailedError(f"{failure.message} (exit code {termination.exit_code})", log=failure.log)
    text = f"{failure.message}: the pod was terminated: {termination.reason} {termination.message}".rstrip()
    hint = "Raise the memory: --memory, or JobSettings(resources=…)." if termination.reason == "OOMKilled" else ""
    return ProcessFailedError(text, hint=hint, log=failure.log)
