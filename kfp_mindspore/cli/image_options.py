"""Options of `kfp-mindspore image`: registries and builders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kfp_mindspore.cli.output import PairType
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.images import RegistryConfig
    from kfp_mindspore.images.builders.base import Builder
    from kfp_mindspore.images.builders.cluster_job import JobSettings

Command = TypeVar("Command", bound=Callable[..., Any])

BUILDERS = ("append", "docker", "cluster")
_DESCRIPTIONS = {"append": "a registry alone", "docker": "a Docker daemon", "cluster": "a Job on Kubernetes"}
_FILE = click.Path(path_type=Path)


@dataclass(frozen=True)
class RegistryOptions:
    """The registry options, one field each."""

    insecure: tuple[str, ...] = ()
    ca_file: Path | None = None
    mirrors: tuple[tuple[str, str], ...] = ()
    docker_config: Path | None = None
    push_secret: str = ""
    pull_secrets: tuple[str, ...] = ()

    def make_config(self) -> RegistryConfig:
        """Return the configuration.

        Raises:
            UserError: A file does not exist, or a value is invalid.
        """
        from kfp_mindspore.images import RegistryConfig

        if self.docker_config is not None and not self.docker_config.is_file():
            reason = "is not a file" if self.docker_config.exists() else "no such file"
            raise UserError(f"--docker-config: {self.docker_config}: {reason}")
        return RegistryConfig(
            insecure=self.insecure,
            ca_file=self.ca_file,
            mirrors=dict(self.mirrors),
            docker_config=self.docker_config,
            push_secret=self.push_secret,
            pull_secrets=self.pull_secrets,
        )


@dataclass(frozen=True)
class BuilderOptions:
    """The builder options, one field each, and the names of the command's builders."""

    builder: str = "append"
    build_args: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    docker_host: str = ""
    network: str = ""
    builder_image: str = ""
    namespace: str = ""
    context: str | None = None
    kubeconfig: Path | None = None
    claim: str = ""
    claim_path: Path | None = None
    store: str = ""
    store_endpoint: str = ""
    memory: str = ""
    deadline_seconds: int | None = None
    choices: tuple[str, ...] = BUILDERS

    def make_builder(self, registry: RegistryConfig) -> Builder:
        """Return the builder.

        Raises:
            UserError: An option belongs to another builder, two contradict each other, or a value is invalid.
        """
        self._check_owners(registry)
        if self.builder == "docker":
            from kfp_mindspore.images.builders.docker import DockerBuilder

            return DockerBuilder(
                registry,
                host=self.docker_host,
                build_args=dict(self.build_args),
                secrets={name: Path(file) for name, file in self.secrets},
                network=self.network,
            )
        if self.builder == "cluster":
            from kfp_mindspore.images.builders.cluster import BUILDKIT_IMAGE, ClusterBuilder
            from kfp_mindspore.images.builders.context_store import make_context_store

            self._check_cluster(registry)
            return ClusterBuilder(
                registry,
                namespace=self.namespace,
                kubeconfig=self.kubeconfig,
                context=self.context,
                image=self.builder_image or BUILDKIT_IMAGE,
                context_store=make_context_store(
                    claim=self.claim,
                    claim_path=self.claim_path,
                    store=self.store,
                    store_endpoint=self.store_endpoint,
                ),
                build_args=dict(self.build_args),
                secrets=dict(self.secrets),
                job=self._make_job_settings(),
            )
        from kfp_mindspore.images.builders.append import AppendBuilder

        return AppendBuilder(registry)

    def _check_cluster(self, registry: RegistryConfig) -> None:
        """Validate names and quantities before the build context is uploaded."""
        from kfp_mindspore.images.reference import parse_reference
        from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors
        from kfp_mindspore.operator.quantities import parse_quantity

        errors = list_namespace_errors("--namespace", *filter(None, [self.namespace]))
        errors += list_name_errors("--push-secret", *filter(None, [registry.push_secret]))
        errors += list_name_errors("--pull-secret", *registry.pull_secrets)
        errors += list_name_errors("--claim", *filter(None, [self.claim]))
        if self.memory and not parse_quantity(self.memory):
            errors.append(f"--memory: must be a quantity such as 4Gi, got {self.memory!r}")
        if errors:
            raise UserError("; ".join(errors))
        if self.builder_image:
            parse_reference(self.builder_image, field="--builder-image")

    def _make_job_settings(self) -> JobSettings:
        from kfp_mindspore.images.builders.cluster_job import JobSettings

        amount = {"memory": self.memory}
        settings = JobSettings(resources={"requests": amount, "limits": amount} if self.memory else {})
        return settings if self.deadline_seconds is None else replace(settings, deadline_seconds=self.deadline_seconds)

    def _check_owners(self, registry: RegistryConfig) -> None:
        for entry in fields(self):
            if entry.name != "choices" and getattr(self, entry.name) != entry.default:
                self._check_owner(entry.name)
        for name in ("push_secret", "pull_secrets"):
            if getattr(registry, name):
                self._check_owner(name)

    def _check_owner(self, name: str) -> None:
        owners = _OWNERS.get(name, self.choices)
        if self.builder not in owners:
            option = _SPELLING.get(name, name).replace("_", "-")
            raise UserError(f"--{option}: is for --builder {' or '.join(owners)}, got --builder {self.builder}")


_DOCKER, _CLUSTER, _BOTH = ("docker",), ("cluster",), ("docker", "cluster")
_OWNERS = {
    "build_args": _BOTH,
    "secrets": _BOTH,
    "docker_host": _DOCKER,
    "network": _DOCKER,
    **dict.fromkeys(("builder_image", "namespace", "context", "kubeconfig"), _CLUSTER),
    **dict.fromkeys(("claim", "claim_path", "store", "store_endpoint", "memory"), _CLUSTER),
    **dict.fromkeys(("push_secret", "pull_secrets", "deadline_seconds"), _CLUSTER),
}
_SPELLING = {"build_args": "build_arg", "secrets": "secret", "pull_secrets": "pull_secret"}

_REGISTRY_OPTIONS = (
    click.option("--insecure", multiple=True, metavar="HOST", help="Registry that uses plain HTTP; repeatable."),
    click.option("--ca-file", type=_FILE, help="PEM file of certificate authorities of registries."),
    click.option(
        "--mirror",
        "mirrors",
        type=PairType(),
        multiple=True,
        metavar="HOST=LOCATION",
        help="Where images of HOST are read from; repeatable.",
    ),
    click.option("--docker-config", type=_FILE, help="Docker's config.json with logins. [default: Docker's own]"),
)
_BUILDER_OPTIONS = (
    click.option("--build-arg", "build_args", type=PairType(), multiple=True, help="Value of an ARG line; no secrets."),
    click.option(
        "--secret",
        "secrets",
        type=PairType(),
        multiple=True,
        metavar="ID=SOURCE",
        help="For RUN --mount=type=secret,id=ID: a file, or SECRET/KEY on a cluster.",
    ),
    click.option("--docker-host", default="", help="docker: the daemon. [default: DOCKER_HOST, else the usual socket]"),
    click.option("--network", default="", help="docker: network of RUN steps, such as host."),
    click.option("--builder-image", default="", help="cluster: image with rootless BuildKit. [default: moby/buildkit]"),
    click.option("--namespace", default="", help="cluster: namespace of the build."),
    click.option("--context", help="cluster: context of the kubeconfig."),
    click.option("--kubeconfig", type=_FILE, help="cluster: the kubeconfig. [default: KUBECONFIG]"),
    click.option("--push-secret", default="", help="cluster: Secret with the login for pushing."),
    click.option(
        "--pull-secret", "pull_secrets", multiple=True, help="cluster: Secret with a login for pulling; repeatable."
    ),
    click.option("--claim", default="", help="cluster: persistent volume claim for the build context."),
    click.option("--claim-path", type=_FILE, help="cluster: where this process has mounted the claim."),
    click.option("--store", default="", metavar="s3://BUCKET/PREFIX", help="cluster: bucket for the build context."),
    click.option("--store-endpoint", default="", help="cluster: address of the S3 service. [default: AWS]"),
    click.option("--memory", default="", help="cluster: memory of the build pod, such as 4Gi."),
    click.option("--deadline-seconds", type=click.IntRange(1), help="cluster: deadline of the build. [default: 3600]"),
)


def add_registry_options(command: Command) -> Command:
    """Add the options of RegistryOptions, passed to the command as `registry`."""
    return _gather(command, _REGISTRY_OPTIONS, "registry", RegistryOptions)


def add_builder_options(default: str) -> Callable[[Command], Command]:
    """Add the options of BuilderOptions and RegistryOptions, passed to the command as `builder` and `registry`.

    Args:
        default: The default builder.
    """
    choices = tuple(name for name in BUILDERS if default == "append" or name != "append")
    *first, last = (_DESCRIPTIONS[name] for name in choices)
    choice = click.option(
        "--builder",
        type=click.Choice(choices),
        default=default,
        show_default=True,
        help=f"Build by {', '.join(first)} or {last}.",
    )

    def add(command: Command) -> Command:
        gathered = _gather(command, (choice, *_BUILDER_OPTIONS), "builder", BuilderOptions, choices=choices)
        return add_registry_options(gathered)

    return add


def _gather(command: Command, options: tuple[Any, ...], name: str, kind: type[Any], **fixed: Any) -> Command:
    names = {entry.name for entry in fields(kind)}

    @wraps(command)
    def gathered(*positional: Any, **named: Any) -> Any:
        given = {key: named.pop(key) for key in names & set(named)}
        return command(*positional, **{**named, name: kind(**given, **fixed)})

    for option in reversed(options):
        gathered = option(gathered)
    return gathered  # type: ignore[return-value]
