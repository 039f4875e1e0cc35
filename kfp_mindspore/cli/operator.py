"""`kfp-mindspore operator`: the MSJob controller on Kubernetes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.flags import list_given
from kfp_mindspore.cli.shared.output import add_json_option, print_json, print_json_list
from kfp_mindspore.errors import UserError, ValidationError
from kfp_mindspore.kube.names import list_namespace_errors
from kfp_mindspore.operator.install.options import NAME, NAMESPACE
from kfp_mindspore.operator.options import OperatorOptions
from kfp_mindspore.settings import PLACEHOLDER_OPERATOR_IMAGE

# Operator options, which --definition-only does not install.
_OPERATOR_OPTIONS = (
    "image",
    "operator_namespace",
    "namespaces",
    "gang_scheduler",
    "kueue",
    "istio_sidecar",
    "pod_security",
    "replicas",
)
_SHOWN_FIELDS = 12
_add_job_options = dataclass_options(
    OperatorOptions,
    only=("gang_scheduler", "kueue", "istio_sidecar", "pod_security"),
    into="job_options",
    is_complete=False,
)


@click.group(cls=StrictGroup, context_settings={"help_option_names": ["-h", "--help"]})
def operator() -> None:
    """Run MSJobs on Kubernetes: the controller and its installation."""


@operator.command(epilog="Example: kfp-mindspore operator run --context kind-kind -n team-a -n team-b")
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only jobs of this namespace; repeatable.")
@click.option("--kubeconfig", default="", help="A kubeconfig file. [default: the pod's account, or $KUBECONFIG]")
@click.option("--context", default="", help="A context of the kubeconfig. [default: its current one]")
@_add_job_options
@click.option(
    "--scheduler-name", default="", help="schedulerName of pods with a gang scheduler. [default: that of the scheduler]"
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=16, show_default=True, help="Jobs reconciled concurrently."
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
@click.option("--verbose", is_flag=True, help="Log at DEBUG level.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address of probes and metrics.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port of /healthz, /readyz and /metrics; 0: a free one.",
)
@click.option("--leader-elect/--no-leader-elect", help="Work only while holding the Lease, as one of several replicas.")
@click.option("--lease-namespace", default="", help="Namespace of the Lease. [default: the operator's own]")
def run(
    namespaces: tuple[str, ...],
    kubeconfig: str,
    context: str,
    job_options: dict[str, Any],
    scheduler_name: str,
    workers: int,
    log_format: str,
    verbose: bool,
    host: str,
    metrics_port: int,
    leader_elect: bool,
    lease_namespace: str,
) -> None:
    """Run the operator in the foreground until Ctrl-C or SIGTERM."""
    from kfp_mindspore.operator.process.logs import start_log
    from kfp_mindspore.operator.process.runtime import Settings, run_operator

    errors = list_namespace_errors("--namespace", *namespaces)
    if lease_namespace:
        errors += list_namespace_errors("--lease-namespace", lease_namespace)
        if not leader_elect:
            errors.append("--lease-namespace: is for --leader-elect, which was not given")
    if scheduler_name and job_options["gang_scheduler"] == "none":
        errors.append(f"--scheduler-name: is for --gang-scheduler, got {scheduler_name!r} without one")
    if errors:
        raise ValidationError(errors, subject="operator run")
    start_log("json" if log_format == "json" else "text", verbose=verbose)
    run_operator(
        Settings(
            kubeconfig=kubeconfig,
            context=context,
            namespaces=tuple(dict.fromkeys(namespaces)),
            options=OperatorOptions(scheduler_name=scheduler_name, **job_options),
            workers=workers,
            host=host,
            port=metrics_port,
            leader_elect=leader_elect,
            lease_namespace=lease_namespace,
        )
    )


@operator.command(epilog="Example: kfp-mindspore operator install --image registry.example.com/kfp-mindspore@sha256:…")
@click.option("--image", help="An image with kfp-mindspore[operator], by digest.")
@click.option("--operator-namespace", default=NAMESPACE, show_default=True, help="Namespace of the operator.")
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only jobs of this namespace; repeatable.")
@_add_job_options
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Operator pods; one is the leader.",
)
@click.option("--definition-only", is_flag=True, help="Install only the definition of MSJob.")
@click.option("--dry-run", is_flag=True, help="Print the manifests as YAML; apply nothing.")
@click.option("--kubeconfig", default="", help="A kubeconfig file. [default: $KUBECONFIG, or ~/.kube/config]")
@click.option("--context", default="", help="A context of the kubeconfig. [default: its current one]")
@add_json_option
def install(
    image: str | None,
    operator_namespace: str,
    namespaces: tuple[str, ...],
    job_options: dict[str, Any],
    replicas: int,
    definition_only: bool,
    dry_run: bool,
    kubeconfig: str,
    context: str,
    as_json: bool,
) -> None:
    """Install the operator in a cluster, or update it.

    The manifests are those of the kustomize files in config/operator, by server-side apply. A definition without fields
    that jobs have, such as an older version's, is refused.
    """
    from kfp_mindspore.kube.cluster import Cluster
    from kfp_mindspore.operator.install import InstallOptions, build_objects
    from kfp_mindspore.operator.install.apply import apply_objects
    from kfp_mindspore.operator.install.changes import check_definition
    from kfp_mindspore.operator.install.objects import dump_documents

    if not image and not dry_run and not definition_only:
        raise UserError(
            "--image: is required; no image of the operator is published",
            hint="Build one with: kfp-mindspore image runtime --extra operator --to REGISTRY/NAME "
            "(or print the objects with --dry-run)",
        )
    if definition_only and (given := list_given(_OPERATOR_OPTIONS)):
        raise UserError(
            f"--definition-only: installs no operator, which {', '.join(given)} would be for",
            hint="Leave one of them out.",
        )
    options = InstallOptions(
        image=image or PLACEHOLDER_OPERATOR_IMAGE,
        namespace=operator_namespace,
        watched=tuple(dict.fromkeys(namespaces)),
        replicas=replicas,
        **job_options,
    )
    objects = build_objects(options)
    if definition_only:
        objects = [item for item in objects if item["kind"] == "CustomResourceDefinition"]
    if dry_run:
        if not image and not definition_only:
            click.echo("image: a placeholder that no registry has; name yours with --image", err=True)
        if as_json:
            print_json_list(objects)
        else:
            click.echo(dump_documents(objects), nl=False)
        return
    change = check_definition(Cluster(kubeconfig or None, context or None), objects[0])
    if change and not as_json:
        click.echo(f"definition of MSJob: version {change.old} → {change.new}")
        for verb, fields in (("added", change.added), ("removed, which no job has", change.removed)):
            more = f" and {len(fields) - _SHOWN_FIELDS} more" if len(fields) > _SHOWN_FIELDS else ""
            if fields:
                click.echo(f"  {verb}: {', '.join(fields[:_SHOWN_FIELDS])}{more}")
    applied = []
    for name in apply_objects(objects, kubeconfig=kubeconfig or None, context=context or None):
        applied.append(name)
        if not as_json:
            click.echo(f"{name} applied")
    if as_json:
        print_json({"applied": applied, "definition": asdict(change) if change else None})
    elif not definition_only:
        click.echo(f"See it start: kubectl -n {operator_namespace} rollout status deployment/{NAME}")
