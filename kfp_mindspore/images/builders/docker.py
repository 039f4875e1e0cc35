"""Builds with a Docker daemon: by buildx where Docker's command line has it, else by the legacy builder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.images.builders.base import Builder
from kfp_mindspore.images.builders.buildkit import get_buildx_command, run_buildx
from kfp_mindspore.images.builders.docker_daemon import DockerDaemon
from kfp_mindspore.images.builders.docker_messages import read_build, read_push
from kfp_mindspore.images.plan import ALL_PLATFORMS, ImagePlan
from kfp_mindspore.images.progress import OnProgress
from kfp_mindspore.images.reference import Reference, parse_reference
from kfp_mindspore.images.registry.configuration import RegistryConfig
from kfp_mindspore.images.result import BuildResult


class DockerBuilder(Builder):
    """Builds and pushes with a Docker daemon, which also pulls the base image.

    The tag is the same on every machine; the image's digest is not, since the daemon adds timestamps.

    Args:
        registry: How registries are reached. Insecure registries, certificate authorities and mirrors are daemon
            settings; logins come from the docker config.json.
        host: The daemon, such as `unix:///var/run/docker.sock`; default: `$DOCKER_HOST`, else the usual socket.
        executable: Docker's command line: with the plugin buildx it builds, without it the daemon's legacy builder.
        build_args: Values for the Containerfile's ARG instructions; the image's history shows them, so no secrets.
        secrets: Files by id for `RUN --mount=type=secret,id=ID`; they need buildx.
        network: The RUN steps' network, such as `host`; default: the daemon's.
        timeout_seconds: Seconds without output before the daemon counts as gone.

    Raises:
        UserError: A secret's file does not exist.
    """

    def __init__(
        self,
        registry: RegistryConfig | None = None,
        *,
        host: str = "",
        executable: str = "docker",
        build_args: Mapping[str, str] | None = None,
        secrets: Mapping[str, Path] | None = None,
        network: str = "",
        timeout_seconds: float = 1800.0,
    ) -> None:
        super().__init__(registry)
        self.build_args = dict(build_args or {})
        self.secrets = {name: Path(path).absolute() for name, path in (secrets or {}).items()}
        for name, path in self.secrets.items():
            if not path.is_file():
                raise UserError(f"secrets[{name}]: {path}: no such file")
        self.network = network
        self._buildx = get_buildx_command(executable)
        self._daemon = DockerDaemon(host, self.registry, timeout_seconds)

    def resolve_base(self, base: str, platform: str) -> str:
        """Return the base image's digest, or the ID when only the daemon has the image."""
        image = self._daemon.get_image_id(base)
        if image and not self._daemon.connect().inspect_image(image)["RepoDigests"]:
            return image
        return super().resolve_base(base, platform)

    def check(self, plan: ImagePlan) -> None:
        """Validate the platform, the secrets and the connection to the daemon.

        Raises:
            UserError: Several platforms at once, secrets without buildx, or no daemon responds.
        """
        if plan.options.platform == ALL_PLATFORMS:
            raise UserError(
                "platform: the docker builder builds one platform at a time, got 'all'",
                hint="Name one such as linux/amd64, or use the append builder.",
            )
        if self.secrets and not self._buildx:
            raise UserError(
                "secrets: the daemon's legacy builder does not support them",
                hint="Install Docker's plugin buildx (docker-buildx), or use the cluster builder.",
            )
        self._daemon.connect()

    def make(self, plan: ImagePlan, target: Reference, on_progress: OnProgress) -> BuildResult:
        """Build in the daemon and push.

        Raises:
            ProcessFailedError: A step failed; `log` has its last lines.
            UserError: The daemon or the registry refuses the request.
            KfpMindSporeError: The daemon or the registry failed; no tag was set.
        """
        located = replace(plan, options=replace(plan.options, containerfile=self._locate_base(plan)))
        try:
            with tempfile.TemporaryFile(prefix="kfp-mindspore-context-") as file:
                context = cast(BinaryIO, file)
                located.write_context(context)
                context.seek(0)
                # The labels come from the plan: a mirror does not change the image.
                if self._buildx:
                    self._run_buildx(self._buildx, context, plan, target, on_progress)
                else:
                    messages = self._daemon.build(
                        context,
                        tag=str(target),
                        labels=plan.all_labels,
                        platform=plan.options.platform,
                        build_args=self.build_args,
                        network=self.network,
                    )
                    # Closing the connection cancels the build, such as after Ctrl-C.
                    with closing(messages):
                        read_build(messages, on_progress)
            with closing(self._daemon.push(target)) as messages:
                pushed = read_push(messages, str(target), on_progress)
        finally:
            # The next request would read an interrupted stream to its end.
            self._daemon.close()
        return replace(
            self.verify_push(plan, target, pushed.digest),
            layers_sent=len(pushed.sent),
            layers_reused=len(pushed.reused),
            sent_bytes=sum(pushed.sent.values()),
        )

    def _run_buildx(
        self, command: list[str], context: BinaryIO, plan: ImagePlan, target: Reference, on_progress: OnProgress
    ) -> None:
        arguments = ["--tag", str(target), "--platform", plan.options.platform]
        for option, pairs in (("--label", plan.all_labels), ("--build-arg", self.build_args)):
            for key, value in sorted(pairs.items()):
                arguments += [option, f"{key}={value}"]
        if self.network:
            arguments += ["--network", self.network]
        for name, path in sorted(self.secrets.items()):
            arguments += ["--secret", f"id={name},src={path}"]
        try:
            run_buildx(
                [*command, *arguments],
                context,
                on_progress,
                # The daemon that pushes, not the command line's current context.
                host=self._daemon.address,
                docker_config=self.registry.docker_config,
            )
        except KfpMindSporeError as error:
            # After losing the daemon, buildx reports a closed connection only.
            self._daemon.check_connection(error.message)
            raise

    def _locate_base(self, plan: ImagePlan) -> str:
        """Return the Containerfile with the base image as this daemon resolves it: its own, or in a mirror."""
        written = plan.base_reference
        if written not in plan.containerfile:
            return plan.containerfile
        if self._daemon.get_image_id(plan.options.base) == plan.base_digest:
            return plan.containerfile.replace(written, plan.options.base)
        reference = parse_reference(plan.options.base, field="base")
        located = self.registry.locate(reference)
        if located == reference:
            return plan.containerfile
        return plan.containerfile.replace(written, str(located.with_digest(plan.base_digest)))
