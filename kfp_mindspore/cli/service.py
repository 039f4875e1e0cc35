"""`kfp-mindspore service`: create, list, stop and delete services, read their logs, and write KServe's runtime."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from kfp_mindspore import files
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.completion import complete_services
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json, print_json_list, print_table
from kfp_mindspore.errors import GateNotMetError, UserError, join_names
from kfp_mindspore.inference import InferenceClient, Service
from kfp_mindspore.inference.runtime import RuntimeOptions, build_serving_runtime, render_serving_runtime
from kfp_mindspore.inference.service import OF_DEPLOYMENT, ServiceStatus, format_command
from kfp_mindspore.mindir.monitoring.options import DriftOptions
from kfp_mindspore.options import list_options, to_text
from kfp_mindspore.outputs import check_page
from kfp_mindspore.settings import BACKEND_VARIABLE, KSERVE, KUBERNETES, LOCAL, SERVER_IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.mindir.monitoring.monitor import DriftReport

Command = TypeVar("Command", bound=Callable[..., Any])


def add_namespace_option(command: Command) -> Command:
    """Add `--namespace`, passed to the command as `namespace`."""
    return click.option("-n", "--namespace", help="Namespace of the service. [default: the context's, else 'default']")(
        command
    )


def add_wait_option(command: Command) -> Command:
    """Add `--wait`, passed to the command as `wait`."""
    option = click.option(
        "--wait", type=click.FloatRange(min=0), default=120, show_default=True, help="Seconds until it has to serve."
    )
    return option(command)


def add_backend_option(command: Command) -> Command:
    """Add `--backend`, passed as `backend`; `kserve` is another word for `kubernetes`."""
    return click.option(
        "--backend",
        type=click.Choice([LOCAL, KUBERNETES, KSERVE]),
        envvar=BACKEND_VARIABLE,
        help="Where it runs. [default: local on a machine, kubernetes in a pod]",
    )(command)


def _add_target(command: Command) -> Command:
    """Add the argument NAME, `--namespace`, `--backend` and `--json`."""
    options = add_namespace_option(add_backend_option(add_json_option(command)))
    return click.argument("name", shell_complete=complete_services)(options)


_SINGULARS = ("server_args", "pod_labels", "pod_annotations", "annotations", "tolerations", "image_pull_secrets")
_UPDATED = [entry.name for entry in list_options(Service) if entry.name not in (*OF_DEPLOYMENT, "model_format")]


def _add_service_options(only: Sequence[str], settings: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options of `Service`, passed to the command as the dict `fields`."""
    return dataclass_options(
        Service,
        only=only,
        names={name: f"--{name.replace('_', '-').removesuffix('s')}" for name in _SINGULARS},
        settings=dict.fromkeys(only, settings),
        into="fields",
        is_complete=False,
    )


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore service describe digits")
def service() -> None:
    """Create, list, describe, promote, roll back and stop services."""


@service.command(
    epilog="""\b
Examples:
  kfp-mindspore service create digits out/model
  kfp-mindspore service create digits s3://bucket/model --backend kubernetes --replicas 2
  kfp-mindspore service create digits out/new --canary 10"""
)
@click.argument("name", shell_complete=complete_services)
@click.argument("model", metavar="DIR|URI")
@click.option("--canary", type=click.IntRange(0, 99), default=0, help="Percentage of the requests for a canary.")
@_add_service_options([*_UPDATED, "model_format"], {})
@add_wait_option
@add_namespace_option
@add_backend_option
@add_json_option
def create(
    name: str,
    model: str,
    canary: int,
    wait: float,
    namespace: str | None,
    backend: str | None,
    as_json: bool,
    fields: dict[str, Any],
) -> None:
    """Deploy the bundle DIR, or on a cluster a URI, as the service NAME and wait until it serves.

    If NAME exists, the bundle becomes its next version: the previous one serves until the new one is ready. The
    service runs until `service stop NAME`.
    """
    client = InferenceClient(backend, namespace)
    status = client.deploy(Service(name, model, **fields), wait, canary=canary)
    _print_outcome(status, as_json)
    if canary and not as_json:
        _print_canary(status, backend or "")


@service.command(
    epilog="""\b
Examples:
  kfp-mindspore service update digits --max-replicas 4 --backend kubernetes
  kfp-mindspore service update digits --server-arg --max_batch=8"""
)
@click.argument("name", shell_complete=complete_services)
@_add_service_options(_UPDATED, {"show_default": False})
@add_wait_option
@add_namespace_option
@add_backend_option
@add_json_option
@click.pass_context
def update(
    context: click.Context,
    name: str,
    wait: float,
    namespace: str | None,
    backend: str | None,
    as_json: bool,
    fields: dict[str, Any],
) -> None:
    """Deploy the model of the service NAME again with other options, as its next version.

    Options that are not given stay as they are.
    """
    given = {key for key in fields if context.get_parameter_source(key) is not ParameterSource.DEFAULT}
    if not given:
        raise click.UsageError("give the options to change")
    changes = {key: fields[key] for key in fields if key in given}
    _print_outcome(InferenceClient(backend, namespace).update(name, changes, wait), as_json)


@service.command("list", epilog="Example: kfp-mindspore service list --all-namespaces")
@add_namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="List those of every namespace.")
@add_backend_option
@add_json_option
def list_services(namespace: str | None, all_namespaces: bool, backend: str | None, as_json: bool) -> None:
    """List services."""
    client = InferenceClient(backend, namespace)
    statuses = client.list(all_namespaces=all_namespaces)
    if as_json:
        print_json_list([status.to_dict() for status in statuses])
        return
    if not statuses:
        click.echo("No services." if all_namespaces else f"No services in namespace {client.namespace}.")
        return
    columns = ["name", "state", "url", "version", "canary", "restarts", "age"]
    rows = [{**status.to_dict(), "canary": _format_canary(status), "age": _format_age(status)} for status in statuses]
    print_table(rows, ["namespace", *columns] if all_namespaces else columns)


@service.command(epilog="Example: kfp-mindspore service describe digits --json")
@_add_target
def describe(name: str, namespace: str | None, backend: str | None, as_json: bool) -> None:
    """Show how the service NAME is."""
    _print_status(InferenceClient(backend, namespace).get(name), as_json)


@service.command(epilog="Example: kfp-mindspore service promote digits")
@add_wait_option
@_add_target
def promote(name: str, wait: float, namespace: str | None, backend: str | None, as_json: bool) -> None:
    """Make the canary of the service NAME its next version."""
    _print_outcome(InferenceClient(backend, namespace).promote(name, wait), as_json)


@service.command(epilog="Example: kfp-mindspore service rollback digits")
@add_wait_option
@_add_target
def rollback(name: str, wait: float, namespace: str | None, backend: str | None, as_json: bool) -> None:
    """Remove the canary of the service NAME; without one, deploy the model of the version before again."""
    _print_outcome(InferenceClient(backend, namespace).rollback(name, wait), as_json)


@service.command(epilog="Example: kfp-mindspore service stop digits")
@_add_target
def stop(name: str, namespace: str | None, backend: str | None, as_json: bool) -> None:
    """End the service NAME; its state and its log stay until it is deleted."""
    status = InferenceClient(backend, namespace).stop(name)
    if as_json:
        print_json(status.to_dict())
    else:
        click.echo(f"{name}: stopped")


@service.command(epilog="Example: kfp-mindspore service delete digits")
@_add_target
def delete(name: str, namespace: str | None, backend: str | None, as_json: bool) -> None:
    """End the service NAME and forget it."""
    client = InferenceClient(backend, namespace)
    client.delete(name)
    if as_json:
        print_json({"name": name, "namespace": client.namespace, "deleted": True})
    else:
        click.echo(f"{name}: deleted")


@service.command(epilog="Example: kfp-mindspore service logs digits --lines 50 --follow")
@click.argument("name", shell_complete=complete_services)
@click.option("-f", "--follow", is_flag=True, help="Go on until the service is over.")
@click.option("--lines", type=click.IntRange(min=0), help="How many of the lines so far. [default: all]")
@add_namespace_option
@add_backend_option
def logs(name: str, follow: bool, lines: int | None, namespace: str | None, backend: str | None) -> None:
    """Print what the server of the service NAME printed."""
    for line in InferenceClient(backend, namespace).logs(name, follow=follow, lines=lines):
        click.echo(line)


@service.command(
    epilog="""\b
Examples:
  kfp-mindspore service drift houses --window 24h --report drift.html
  kfp-mindspore service drift --model out/model --log log.jsonl --labels labels.csv --gate"""
)
@click.argument("name", required=False, default="", shell_complete=complete_services)
@click.option("--model", help="Bundle's directory or URI. [default: the service's]")
@click.option("--log", help="The log's file, folder or URI. [default: the service's]")
@click.option("--labels", default="", help="CSV or JSON lines with id, an event's ID, and label.")
@click.option("--report", type=OutputPath(), help="HTML page to write.")
@click.option("--prometheus", default="", help="Pushgateway's URL, or a file for node exporter's textfile collector.")
@click.option("--gate", is_flag=True, help="Exit with 3 where a column has drifted or the metric has fallen.")
@dataclass_options(DriftOptions)
@add_namespace_option
@add_backend_option
@add_json_option
def drift(
    name: str,
    model: str | None,
    log: str | None,
    labels: str,
    report: Path | None,
    prometheus: str,
    gate: bool,
    options: DriftOptions,
    namespace: str | None,
    backend: str | None,
    as_json: bool,
) -> None:
    """Compare the logged requests of the service NAME with its model's training data.

    Without NAME, --model and --log are needed. Drift is not an error unless --gate is given.
    """
    from kfp_mindspore.mindir.monitoring.log import open_location
    from kfp_mindspore.mindir.monitoring.monitor import detect_drift
    from kfp_mindspore.steps.evaluation.drift import describe_report, publish_metrics
    from kfp_mindspore.steps.evaluation.drift_report import render_drift

    if model is None or log is None:
        if not name:
            raise click.UsageError("give NAME, or --model and --log")
        status = InferenceClient(backend, namespace).get(name)
        model = model or status.model
        log = log or (status.options.get("logger") or {}).get("url")
        if not log:
            raise UserError(f"service {name}: has no log", hint="Give --log, or: kfp-mindspore service update --help")
    if report is not None:
        check_page(report, [model, log, labels or None])
    with open_location(model, hint="--model is a bundle, a folder or URI, as model export writes it.") as bundle:
        found = detect_drift(bundle, log, options, labels=labels, service=name)
    found = dataclasses.replace(found, model=model)
    if report is not None:
        files.write_text(report, render_drift(found))
    publish_metrics(found, name or Path(model).name, prometheus)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_drift(found)
    if gate and not found.passed:
        raise GateNotMetError(describe_report(found))
    if not as_json:
        click.echo(describe_report(found))


@service.command(
    epilog="Example: kfp-mindspore service runtime --image registry.example.com/server@sha256:… | kubectl apply -f -"
)
@dataclass_options(
    RuntimeOptions,
    names={"namespace": "-n --namespace"},
    settings={"image": {"envvar": SERVER_IMAGE_VARIABLE, "default": None, "show_default": False}},
)
@add_json_option
def runtime(options: RuntimeOptions, as_json: bool) -> None:
    """Write the serving runtime's manifest, with which KServe serves model bundles."""
    manifest = build_serving_runtime(
        options.image,
        namespace=options.namespace or None,
        auto_select=options.auto_select,
        name=options.name,
        model_format=options.model_format,
    )
    if as_json:
        print_json(manifest)
    else:
        click.echo(render_serving_runtime(manifest), nl=False)
    if "@sha256:" not in options.image:
        click.echo(f"image: {options.image} has no digest; set --image REGISTRY/NAME@sha256:…", err=True)


def _print_outcome(status: ServiceStatus, as_json: bool) -> None:
    if as_json:
        print_json(status.to_dict())
    else:
        click.echo(f"{status.name}: version {status.version} serves {status.model} at {status.url}")


def _print_drift(found: DriftReport) -> None:
    rows = [
        {
            "column": test.column,
            "measure": test.measure,
            "test": test.test,
            "statistic": f"{test.statistic:.4g}",
            "corrected": f"{test.adjusted:.2g}",
            "stability": f"{test.effect:.3f}",
            "drift": "yes" if test.is_drift(found.significance) else "",
        }
        for test in sorted(found.tests, key=lambda test: test.adjusted)
    ]
    print_table(rows, ["column", "measure", "test", "statistic", "corrected", "stability", "drift"])
    for reason in dict.fromkeys(found.not_watched.values()):
        names = [name for name, why in found.not_watched.items() if why == reason]
        click.echo(f"not watched: {join_names(names)}: {reason}")
    if found.unknown:
        click.echo(f"unknown to training: {join_names(found.unknown)}")
    for reason, count in found.skipped.items():
        click.echo(f"skipped: {count} {reason}")
    for note in found.notes:
        click.echo(note)


def _print_canary(status: ServiceStatus, backend: str) -> None:
    if status.canary is None:
        click.echo("It is the first version, which has no canary.")
        return
    click.echo(
        f"{status.name}: {status.canary.model} is a canary and gets {status.canary.percent}% of the requests to "
        f"{status.canary.traffic_url}"
    )
    commands = [format_command(verb, status.name, status.namespace, backend) for verb in ("promote", "rollback")]
    click.echo(f"End it: {commands[0]}\n    or: {commands[1]}")


def _print_status(status: ServiceStatus, as_json: bool) -> None:
    if as_json:
        print_json(status.to_dict())
        return
    lines = {
        "name": status.name,
        "namespace": status.namespace,
        "state": f"{status.state}: {status.message}" if status.message else str(status.state),
        "url": status.url,
        "grpc": status.grpc_url,
        "model": status.model,
        "version": status.version,
        "replicas": f"{status.replicas} ({status.scaling})" if status.scaling else status.replicas,
        "restarts": status.restarts,
        "process": status.pid or "none",
        "previous": status.previous or "none",
        "digest": status.digest or "unknown",
        "run": status.run or "unknown",
        "age": _format_age(status),
        "log": status.log or format_command("logs", status.name, status.namespace, KUBERNETES),
    }
    if (canary := status.canary) is not None:
        lines |= {
            "canary": f"{canary.percent}% {f'{canary.state}: {canary.message}' if canary.message else canary.state}",
            "": f"model {canary.model}, url {canary.url}",
            "traffic": canary.traffic_url,
        }
    for name, value in lines.items():
        click.echo(f"{name:10} {value}")
    for name, option in status.options.items():
        click.echo(f"{'option':10} {name}: {to_text(option)}")
    for warning in status.warnings:
        click.echo(f"{'warning':10} {warning}")


def _format_canary(status: ServiceStatus) -> str:
    return f"{status.canary.percent}%" if status.canary else ""


def _format_age(status: ServiceStatus) -> str:
    seconds = max(0, int(time.time() - status.created))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
