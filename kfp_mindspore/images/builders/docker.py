"""Builds with a Docker daemon: by BuildKit where its command line has it, else by the legacy builder; then pushes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.images.builders.base import Builder
from kfp_mindspore.images.builders.buildkit import find_buildkit, list_arguments, run_buildkit
from kfp_mindspore.images.builders.docker_daemon import Daemon
from kfp_mindspore.images.builders.docker_messages import PushedLayers, read_build, read_push
from kfp_mindspore.images.containerfile import CONTAINERFILE_FILE
from kfp_mindspore.images.plan import ALL_PLATFORMS, ImagePlan
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.result import BuildResult, OnProgress

BACKENDS = ("auto", "buildkit", "legacy")


class DockerBuilder(Builder):
    """Builds and pushes with a Docker daemon, which also pulls the base image.

    The tag is the same on every machine; the image's digest is not, since the daemon writes times of its own.

    Args:
        registry: How registries are reached. The daemon has its own settings for insecure registries, authorities and
            mirrors; logins come from the docker config.json named here.
        host: The daemon, such as `unix:///var/run/docker.sock`; by default `$DOCKER_HOST`, else the usual socket.
        backend: `buildkit`, `legacy`, or `auto`: BuildKit when the command line has it.
        executable: Docker's command line, which BuildKit needs; the legacy builder needs none.
        build_args: Values of the Containerfile's ARG lines. They can be read in the image's history: no secrets.
        secrets: Files by name for `RUN --mount=type=secret,id=NAME`; BuildKit only.
        network: Network of the RUN steps, such as `host`; by default the daemon's.
        timeout_seconds: Seconds the daemon may say nothing, such as while one step compiles.
        others: Builders that can be taken instead, for messages: `append`, `cluster`.

    Raises:
        UserError: The backend is unknown, or a secret's file is missing.
    """

    def __init__(
        self,
        registry: RegistryConfig | None = None,
        *,
        host: str = "",
        backend: str = "auto",
        executable: str = "docker",
        build_args: Mapping[str, str] | None = None,
        secrets: Mapping[str, Path] | None = None,
        network: str = "",
        timeout_seconds: float = 1800.0,
        others: Sequence[str] = ("append", "cluster"),
    ) -> None:
        super().__init__(registry)
        if backend not in BACKENDS:
            raise UserError(f"backend: must be one of {', '.join(BACKENDS)}, got {backend!r}")
        self.backend = backend
        self.build_args = dict(build_args or {})
        self.secrets = {name: Path(path).absolute() for name, path in (secrets or {}).items()}
        for name, path in self.secrets.items():
            if not path.is_file():
                raise UserError(f"secrets[{name}]: {path}: no such file")
        self.network = network
        self._executable = executable
        self._daemon = Daemon(host, self.registry, timeout_seconds, others)

    def resolve_base(self, base: str, platform: str) -> str:
        """Return the digest of the base image; the ID of one that only the daemon has."""
        daemon = self._daemon.connect()
        image = self._daemon.find_image(base)
        if image and not daemon.inspect_image(image)["RepoDigests"]:
            return image
        return super().resolve_base(base, platform)

    def check(self, plan: ImagePlan) -> None:
        """Refuse several platforms at once, secrets without BuildKit, and a daemon that does not answer.

        Raises:
            UserError: As above.
        """
        if plan.platform == ALL_PLATFORMS:
            raise UserError(
                "platform: the Docker builder makes one platform at a time, got 'all'",
                hint="Name one such as linux/amd64, or take the append builder.",
            )
        if (self.secrets or self.backend == "buildkit") and not self._buildkit:
            raise UserError(
                "secrets: the legacy builder has none, and would keep them in the image's history",
                hint="Install BuildKit's command line (docker-buildx), or take the cluster builder.",
            )
        self._daemon.connect()

    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Build in the daemon and push.

        Raises:
            ProcessFailedError: A step failed; `log` has its last lines.
            UserError: The daemon or the registry refuses.
            KfpMindSporeError: The daemon or the registry failed; no tag was set.
        """
        labels = plan.all_labels
        located = replace(plan, containerfile=self._locate_base(plan))
        try:
            with tempfile.TemporaryFile(prefix="kfp-mindspore-context-") as context:
                located.write_context(cast(BinaryIO, context))
                context.seek(0)
                self._run_build(cast(BinaryIO, context), plan, labels, target, on_progress)
            with closing(self._daemon.push(target)) as messages:
                pushed = read_push(messages, str(target), on_progress)
        finally:
            # An interrupted stream would be read to its end by the next request.
            self._daemon.close()
        return self._describe(plan, target, pushed)

    @cached_property
    def _buildkit(self) -> list[str]:
        """The words that start a build by BuildKit; empty for the legacy builder."""
        if self.backend == "legacy":
            return []
        words = find_buildkit(self._executable)
        if not words and self.backend == "buildkit":
            raise UserError(
                f"backend: {self._executable} has no BuildKit",
                hint="Install Docker's command line with the plugin buildx, or take the backend legacy.",
            )
        return words

    def _run_build(
        self, context: BinaryIO, plan: ImagePlan, labels: Mapping[str, str], target: Reference, on_progress: OnProgress
    ) -> None:
        if not self._buildkit:
            messages = self._daemon.build(
                context,
                containerfile=CONTAINERFILE_FILE,
                tag=str(target),
                labels=labels,
                platform=plan.platform,
                build_args=self.build_args,
                network=self.network,
            )
            # A daemon ends a build when the connection is closed, as after Ctrl-C.
            with closing(messages):
                read_build(messages, on_progress)
            return
        arguments = list_arguments(
            containerfile=CONTAINERFILE_FILE,
            tag=str(target),
            labels=labels,
            platform=plan.platform,
            build_args=self.build_args,
            network=self.network,
            secrets=self.secrets,
        )
        try:
            run_buildkit(
                self._buildkit,
                arguments,
                context,
                on_progress,
                # Neither a context of the command line nor another daemon than the one that pushes.
                host=self._daemon.address,
                docker_config=self.registry.docker_config,
            )
        except KfpMindSporeError as error:
            # The command line only says that its connection closed.
            self._daemon.check_alive(error.message)
            raise

    def _locate_base(self, plan: ImagePlan) -> str:
        """Return the Containerfile with the base image where this daemon finds it: itself, or in a mirror."""
        written = f"{plan.base.partition('@')[0]}@{plan.base_digest}"
        if written not in plan.containerfile:
            return plan.containerfile
        if self._daemon.find_image(plan.base) == plan.base_digest:
            return plan.containerfile.replace(written, plan.base)
        reference = parse_reference(plan.base, field="base")
        located = self.registry.locate(reference)
        if located == reference:
            return plan.containerfile
        return plan.containerfile.replace(written, str(located.with_digest(plan.base_digest)))

    def _describe(self, plan: ImagePlan, target: Reference, pushed: PushedLayers) -> BuildResult:
        found = self.verify_push(plan, target, pushed.digest)
        return replace(
            found,
            layers_sent=len(pushed.sent),
            layers_reused=len(pushed.reused),
            sent_bytes=sum(pushed.sent.values()),
        )
