"""Options for `kfp-mindspore image`: registries and builders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kfp_mindspore.cli.output import PairType
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.images import RegistryConfig
    from kfp_mindspore.images.builders.base import Builder

Command = TypeVar("Command", bound=Callable[..., Any])

BUILDERS = {"append": "a registry alone", "docker": "a Docker daemon", "cluster": "a Job on Kubernetes"}
_FILE = click.Path(path_type=Path)
_EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

_REGISTRY_OPTIONS = {
    "insecure": click.option("--insecure", multiple=True, metavar="HOST", help="Host of plain HTTP; repeatable."),
    "ca_file": click.option("--ca-file", type=_EXISTING_FILE, help="PEM file of certificate authorities."),
    "mirrors": click.option(
        "--mirror",
        "mirrors",
        type=PairType(),
        multiple=True,
        metavar="HOST=LOCATION",
        help="Mirror to pull the images of HOST from; repeatable.",
    ),
    "docker_config": click.option(
        "--docker-config", type=_EXISTING_FILE, help="Docker's config.json with logins. [default: Docker's own]"
    ),
}
_SHARED_OPTIONS = {
    "build_args": click.option(
        "--build-arg", "build_args", type=PairType(), multiple=True, help="Value of an ARG line; no secrets."
    ),
    "secrets": click.option(
        "--secret",
        "secrets",
        type=PairType(),
        multiple=True,
        metavar="ID=SOURCE",
        help="For RUN --mount=type=secret,id=ID: a file, or SECRET/KEY on a cluster.",
    ),
}
_DOCKER_OPTIONS = {
    "docker_host": click.option(
        "--docker-host", default="", help="docker: the daemon. [default: DOCKER_HOST, else the usual socket]"
    ),
    "network": click.option("--network", default="", help="docker: network of RUN steps, such as host."),
}
_CLUSTER_OPTIONS = {
    "builder_image": click.option(
        "--builder-image", default="", help="cluster: image with rootless BuildKit. [default: moby/buildkit]"
    ),
    "namespace": click.option("--namespace", default="", help="cluster: namespace of the build."),
    "context": click.option("--context", help="cluster: context of the kubeconfig."),
    "kubeconfig": click.option("--kubeconfig", type=_FILE, help="cluster: the kubeconfig. [default: KUBECONFIG]"),
    "push_secret": click.option("--push-secret", default="", help="cluster: Secret with the login for pull and push."),
    "pull_secrets": click.option(
        "--pull-secret", "pull_secrets", multiple=True, help="cluster: Secret for the builder's image; repeatable."
    ),
    "claim": click.option("--claim", default="", help="cluster: persistent volume claim for the build context."),
    "claim_path": click.option("--claim-path", type=_FILE, help="cluster: where this process has mounted the claim."),
    "store": click.option(
        "--store", default="", metavar="s3://BUCKET/PREFIX", help="cluster: bucket for the build context."
    ),
    "store_endpoint": click.option(
        "--store-endpoint", default="", help="cluster: address of the S3 service. [default: AWS]"
    ),
    "memory": click.option("--memory", default="", help="cluster: memory of the build pod, such as 4Gi."),
    "deadline_seconds": click.option(
        "--deadline-seconds",
        type=click.IntRange(1),
        default=3600,
        show_default=True,
        help="cluster: deadline of the build.",
    ),
}
_OWNERS = {
    **dict.fromkeys(_SHARED_OPTIONS, ("docker", "cluster")),
    **dict.fromkeys(_DOCKER_OPTIONS, ("docker",)),
    **dict.fromkeys(_CLUSTER_OPTIONS, ("cluster",)),
}


def add_registry_options(command: Command) -> Command:
    """Add a RegistryConfig's options, passed to the command as `registry`."""

    @wraps(command)
    def wrapper(**values: Any) -> Any:
        given = {name: values.pop(name) for name in _REGISTRY_OPTIONS}
        return command(**values, registry=_make_registry(given))

    return _add_options(wrapper, _REGISTRY_OPTIONS)  # type: ignore[return-value]


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
    options = {**_SHARED_OPTIONS, **_DOCKER_OPTIONS, **_CLUSTER_OPTIONS, **_REGISTRY_OPTIONS}

    def add(command: Command) -> Command:
        @wraps(command)
        def wrapper(**values: Any) -> Any:
            name = values.pop("builder")
            _check_owners(name)
            given = {option: values.pop(option) for option in options}
            return command(**values, builder=_make_builder(name, given))

        return choice(_add_options(wrapper, options))  # type: ignore[return-value]

    return add


def _add_options(command: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    for option in reversed(list(options.values())):
        command = option(command)
    return command


def _check_owners(builder: str) -> None:
    """Refuse another builder's options.

    Raises:
        UserError: There is one.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        owners = _OWNERS.get(parameter.name or "", (builder,))
        is_given = context.get_parameter_source(parameter.name or "") == ParameterSource.COMMANDLINE
        if is_given and builder not in owners:
            raise UserError(f"{parameter.opts[0]}: is for --builder {' or '.join(owners)}, got --builder {builder}")


def _make_registry(given: Mapping[str, Any]) -> RegistryConfig:
    from kfp_mindspore.images import RegistryConfig

    names = (*_REGISTRY_OPTIONS, "push_secret", "pull_secrets")
    values = {name: given[name] for name in names if name in given}
    return RegistryConfig(**{**values, "mirrors": dict(given["mirrors"])})


def _make_builder(name: str, given: Mapping[str, Any]) -> Builder:
    registry = _make_registry(given)
    if name == "docker":
        from kfp_mindspore.images import DockerBuilder

        return DockerBuilder(
            registry,
            host=given["docker_host"],
            build_args=dict(given["build_args"]),
            secrets={key: Path(file) for key, file in given["secrets"]},
            network=given["network"],
        )
    if name == "cluster":
        from kfp_mindspore.images import ClusterBuilder
        from kfp_mindspore.images.builders.cluster import BUILDKIT_IMAGE
        from kfp_mindspore.images.builders.cluster_job import JobSettings
        from kfp_mindspore.images.builders.context_store import make_context_store

        _check_cluster_values(given)
        memory = {"memory": given["memory"]}
        return ClusterBuilder(
            registry,
            namespace=given["namespace"],
            kubeconfig=given["kubeconfig"],
            context=given["context"],
            image=given["builder_image"] or BUILDKIT_IMAGE,
            context_store=make_context_store(
                **{option: given[option] for option in ("claim", "claim_path", "store", "store_endpoint")}
            ),
            build_args=dict(given["build_args"]),
            secrets=dict(given["secrets"]),
            job=JobSettings(
                resources={"requests": memory, "limits": memory} if given["memory"] else {},
                deadline_seconds=given["deadline_seconds"],
            ),
        )
    from kfp_mindspore.images import AppendBuilder

    return AppendBuilder(registry)


def _check_cluster_values(given: Mapping[str, Any]) -> None:
    """Validate names and quantities before the build context is uploaded.

    Raises:
        UserError: One is invalid.
    """
    from kfp_mindspore.images.reference import parse_reference
    from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors
    from kfp_mindspore.operator.quantities import parse_quantity

    errors = list_namespace_errors("--namespace", *filter(None, [given["namespace"]]))
    errors += list_name_errors("--push-secret", *filter(None, [given["push_secret"]]))
    errors += list_name_errors("--pull-secret", *given["pull_secrets"])
    errors += list_name_errors("--claim", *filter(None, [given["claim"]]))
    if given["memory"] and not parse_quantity(given["memory"]):
        errors.append(f"--memory: must be a quantity such as 4Gi, got {given['memory']!r}")
    if errors:
        raise UserError("; ".join(errors))
    if given["builder_image"]:
        parse_reference(given["builder_image"], field="--builder-image")
