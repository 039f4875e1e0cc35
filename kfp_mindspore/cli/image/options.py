"""Options for `kfp-mindspore image`: registries and builders."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.flags import list_given
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.options import option

if TYPE_CHECKING:
    from kfp_mindspore.images import RegistryConfig
    from kfp_mindspore.images.builders.base import Builder

Command = TypeVar("Command", bound=Callable[..., Any])

BUILDERS = {"append": "a registry alone", "docker": "a Docker daemon", "cluster": "a Job on Kubernetes"}
_FILE = click.Path(path_type=Path)
_EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

_SHARED = ("build_args", "secrets")
_DOCKER = ("docker_host", "network")


@dataclass(frozen=True)
class RegistryOptions:
    """How registries are reached, as `RegistryConfig` has it.

    Args:
        insecure: Host of plain HTTP.
        ca_file: PEM file of certificate authorities.
        mirrors: Mirror to pull the images of HOST from.
        docker_config: Docker's config.json with logins. [default: Docker's own]
    """

    insecure: Sequence[str] = ()
    ca_file: Path | None = None
    mirrors: Mapping[str, str] = option({})
    docker_config: Path | None = None

    def make_config(self, push_secret: str = "", pull_secrets: Sequence[str] = ()) -> RegistryConfig:
        """Return the configuration, with the Secrets for a build on a cluster."""
        from kfp_mindspore.images import RegistryConfig

        return RegistryConfig(**vars(self), push_secret=push_secret, pull_secrets=tuple(pull_secrets))


@dataclass(frozen=True)
class BuilderOptions:
    """Options of the builders.

    Args:
        build_args: Value of an ARG line; no secrets.
        secrets: For RUN --mount=type=secret,id=ID: a file, or SECRET/KEY on a cluster.
        docker_host: docker: the daemon. [default: DOCKER_HOST, else the usual socket]
        network: docker: network of RUN steps, such as host.
        builder_image: cluster: image with rootless BuildKit. [default: moby/buildkit]
        namespace: cluster: namespace of the build.
        context: cluster: context of the kubeconfig.
        kubeconfig: cluster: the kubeconfig. [default: KUBECONFIG]
        push_secret: cluster: Secret with the login for pull and push.
        pull_secrets: cluster: Secret for the builder's image.
        claim: cluster: persistent volume claim for the build context.
        claim_path: cluster: where this process has mounted the claim.
        store: cluster: bucket for the build context.
        store_endpoint: cluster: address of the S3 service. [default: AWS]
        memory: cluster: memory of the build pod, such as 4Gi.
        deadline_seconds: cluster: deadline of the build.
    """

    build_args: Mapping[str, str] = option({})
    secrets: Mapping[str, str] = option({})
    docker_host: str = ""
    network: str = ""
    builder_image: str = ""
    namespace: str = ""
    context: str | None = None
    kubeconfig: Path | None = None
    push_secret: str = ""
    pull_secrets: Sequence[str] = ()
    claim: str = ""
    claim_path: Path | None = None
    store: str = ""
    store_endpoint: str = ""
    memory: str = ""
    deadline_seconds: int = option(3600, minimum=1)


add_registries = dataclass_options(
    RegistryOptions,
    into="registry",
    names={"mirrors": "--mirror"},
    types={"ca_file": _EXISTING_FILE, "docker_config": _EXISTING_FILE},
    settings={"insecure": {"metavar": "HOST"}, "mirrors": {"metavar": "HOST=LOCATION"}},
)
_add_builder = dataclass_options(
    BuilderOptions,
    names={"build_args": "--build-arg", "secrets": "--secret", "pull_secrets": "--pull-secret"},
    types={"kubeconfig": _FILE, "claim_path": _FILE},
    settings={"secrets": {"metavar": "ID=SOURCE"}, "store": {"metavar": "s3://BUCKET/PREFIX"}},
)


@contextlib.contextmanager
def name_options() -> Iterator[None]:
    """Name a ValidationError's fields, such as `claim, claim_path: …`, as the command's options."""
    try:
        yield
    except ValidationError as error:
        flags = {option.name: max(option.opts, key=len) for option in click.get_current_context().command.params}

        def rename(match: re.Match[str]) -> str:
            return flags.get(match[0], match[0])

        heads = (one.partition(":") for one in error.errors)
        named = [re.sub(r"(?:^|(?<=, ))[a-z_]+", rename, head) + colon + rest for head, colon, rest in heads]
        raise ValidationError(named, hint=error.hint) from None


def add_registry_options(command: Command) -> Command:
    """Add a RegistryConfig's options, passed to the command as `registry`."""

    @wraps(command)
    def wrapper(registry: RegistryOptions, **values: object) -> Any:
        with name_options():
            config = registry.make_config()
        return command(**values, registry=config)

    return add_registries(wrapper)  # type: ignore[return-value]


def add_builder_options(default: str) -> Callable[[Command], Command]:
    """Add a builder's options, passed to the command as `builder`.

    Args:
        default: The default builder.
    """
    names = [name for name in BUILDERS if default == "append" or name != "append"]
    *first, last = (BUILDERS[name] for name in names)
    choice = click.option(
        "--builder",
        type=click.Choice(names),
        default=default,
        show_default=True,
        help=f"Build by {', '.join(first)} or {last}.",
    )

    def add(command: Command) -> Command:
        @wraps(command)
        def wrapper(builder: str, options: BuilderOptions, registry: RegistryOptions, **values: object) -> Any:
            _check_owners(builder)
            with name_options():
                made = _make_builder(builder, options, registry)
            return command(**values, builder=made)

        return choice(_add_builder(add_registries(wrapper)))  # type: ignore[return-value]

    return add


def _check_owners(builder: str) -> None:
    """Refuse another builder's options.

    Raises:
        UserError: There is one.
    """
    for name in BuilderOptions.__dataclass_fields__:
        owners = ("docker", "cluster") if name in _SHARED else ("docker",) if name in _DOCKER else ("cluster",)
        if builder not in owners and (given := list_given([name])):
            raise UserError(f"{given[0]}: is for --builder {' or '.join(owners)}, got --builder {builder}")


def _make_builder(name: str, options: BuilderOptions, registry_options: RegistryOptions) -> Builder:
    registry = registry_options.make_config(push_secret=options.push_secret, pull_secrets=options.pull_secrets)
    if name == "docker":
        from kfp_mindspore.images import DockerBuilder

        return DockerBuilder(
            registry,
            host=options.docker_host,
            build_args=options.build_args,
            secrets={key: Path(file) for key, file in options.secrets.items()},
            network=options.network,
        )
    if name == "cluster":
        from kfp_mindspore.images import ClusterBuilder
        from kfp_mindspore.images.builders.cluster import BUILDKIT_IMAGE
        from kfp_mindspore.images.builders.cluster_job import JobSettings
        from kfp_mindspore.images.builders.context_store import make_context_store

        _check_cluster_values(options)
        memory = {"memory": options.memory}
        return ClusterBuilder(
            registry,
            namespace=options.namespace,
            kubeconfig=options.kubeconfig,
            context=options.context,
            image=options.builder_image or BUILDKIT_IMAGE,
            context_store=make_context_store(
                claim=options.claim,
                claim_path=options.claim_path,
                store=options.store,
                store_endpoint=options.store_endpoint,
            ),
            build_args=options.build_args,
            secrets=options.secrets,
            job=JobSettings(
                resources={"requests": memory, "limits": memory} if options.memory else {},
                deadline_seconds=options.deadline_seconds,
            ),
        )
    from kfp_mindspore.images import AppendBuilder

    return AppendBuilder(registry)


def _check_cluster_values(options: BuilderOptions) -> None:
    """Validate names and quantities before the build context is uploaded.

    Raises:
        UserError: One is invalid.
    """
    from kfp_mindspore.images.reference import parse_reference
    from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors
    from kfp_mindspore.kube.quantities import parse_quantity

    errors = list_namespace_errors("--namespace", *filter(None, [options.namespace]))
    errors += list_name_errors("--push-secret", *filter(None, [options.push_secret]))
    errors += list_name_errors("--pull-secret", *options.pull_secrets)
    errors += list_name_errors("--claim", *filter(None, [options.claim]))
    if options.memory and not parse_quantity(options.memory):
        errors.append(f"--memory: must be a quantity such as 4Gi, got {options.memory!r}")
    if errors:
        raise UserError("; ".join(errors))
    if options.builder_image:
        parse_reference(options.builder_image, field="--builder-image")
