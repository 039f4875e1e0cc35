"""`kfp-mindspore pipeline setup|check`: what a run's steps need on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kfp_mindspore.cli.command import StrictCommand
from kfp_mindspore.cli.completion import complete_pipelines
from kfp_mindspore.cli.output import add_json_option, dump_manifest, print_json, print_json_list, print_table
from kfp_mindspore.cli.pipeline_options import add_parameters
from kfp_mindspore.errors import UserError
from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors
from kfp_mindspore.runs.access import CAPABILITIES, PERMISSIONS, Capability, ServiceAccount
from kfp_mindspore.settings import IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster
    from kfp_mindspore.runs.preflight import CheckResult

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_ACCOUNT = "pipeline-runner"


def add_account_options(command: Command) -> Command:
    """Add the options for a run's account, its namespaces and the cluster."""
    file = click.Path(path_type=Path)
    options = (
        click.option("-n", "--namespace", required=True, help="Namespace of the runs."),
        click.option(
            "--service-account",
            default=DEFAULT_ACCOUNT,
            show_default=True,
            help="Service account of the steps; default-editor in a profile of Kubeflow.",
        ),
        click.option("--job-namespace", "training", multiple=True, help="Namespace of the MSJobs. [default: -n]"),
        click.option("--service-namespace", "deployment", multiple=True, help="Namespace of services. [default: -n]"),
        click.option(
            "--build-namespace",
            "images",
            multiple=True,
            help="Namespace of image builds, which it enables.",
        ),
        click.option(
            "--secret", "secrets", multiple=True, help="Secret of the artifact store, besides KFP's own; repeatable."
        ),
        click.option(
            "--model-account", default="", help="Service account of services, with the Secret of the model's store."
        ),
        click.option("--kubeconfig", type=file, help="A kubeconfig file. [default: KUBECONFIG, ~/.kube/config]"),
        click.option("--context", help="Context of the kubeconfig. [default: its current one]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore pipeline setup -n kubeflow > access.yaml
  kfp-mindspore pipeline setup -n my-profile --service-account default-editor --apply
  kfp-mindspore pipeline setup -n kubeflow --model-account model-reader --apply""",
)
@add_account_options
@click.option(
    "--for",
    "capabilities",
    type=click.Choice(CAPABILITIES),
    multiple=True,
    help="Only what these steps need; repeatable. [default: all but images, which --build-namespace adds]",
)
@click.option("--store-endpoint", default="", help="URL of the model's store. [default: that of kfp-launcher]")
@click.option("--apply", is_flag=True, help="Apply the objects to the cluster instead of printing them.")
@add_json_option
def setup(
    namespace: str,
    service_account: str,
    training: tuple[str, ...],
    deployment: tuple[str, ...],
    images: tuple[str, ...],
    secrets: tuple[str, ...],
    model_account: str,
    capabilities: tuple[Capability, ...],
    store_endpoint: str,
    apply: bool,
    kubeconfig: Path | None,
    context: str | None,
    as_json: bool,
) -> None:
    """Print or apply the Roles and RoleBindings that the steps of runs need.

    With --model-account also the service account with which KServe reads models, and with --apply its Secret, a copy of
    the artifact store's credentials in KServe's form. Credentials are never printed.
    """
    from kfp_mindspore.inference.store_account import build_account
    from kfp_mindspore.runs.access import build_access, list_default_capabilities

    account = _make_account(namespace, service_account, (*training, *deployment, *images), secrets, model_account)
    if store_endpoint and not (model_account and store_endpoint.startswith(("http://", "https://"))):
        raise UserError("--store-endpoint: must be http://… or https://…, together with --model-account")
    given: dict[Capability, tuple[str, ...]] = {"training": training, "deployment": deployment, "images": images}
    names = capabilities or list_default_capabilities(has_builds=bool(images))
    chosen = {name: given.get(name) or (namespace,) for name in PERMISSIONS if name in names}
    documents = build_access(account, chosen, secrets)
    places = (deployment or (namespace,)) if model_account else ()
    documents += [build_account(model_account, place) for place in places]
    if not apply:
        if model_account:
            click.echo(f"The Secret {model_account} holds credentials and is not printed: --apply makes it.", err=True)
        if as_json:
            print_json_list(documents)
        else:
            click.echo("---\n".join(dump_manifest(document) for document in documents), nl=False)
        return
    from kfp_mindspore.kube.cluster import Cluster

    cluster = Cluster(kubeconfig, context)
    documents += _build_secrets(cluster, namespace, model_account, places, store_endpoint)
    applied = []
    for document in documents:
        metadata = cluster.apply(document)["metadata"]
        applied.append(f"{document['kind'].lower()}/{metadata['name']} in namespace {metadata['namespace']}")
        if not as_json:
            click.echo(f"{applied[-1]} applied")
    if as_json:
        print_json({"applied": applied})


def _build_secrets(
    cluster: Cluster, namespace: str, name: str, places: tuple[str, ...], endpoint: str
) -> list[dict[str, Any]]:
    """Return the Secrets for the services' service account, with the artifact store's credentials."""
    from kfp_mindspore.inference.store_account import build_secret
    from kfp_mindspore.stores.config import read_model_store

    if not places:
        return []
    options = read_model_store(cluster, namespace, endpoint).options
    region = (options.get("client_kwargs") or {}).get("region_name", "")
    found = {"endpoint": options.get("endpoint_url", ""), "region": region}
    return [build_secret(name, place, (options["key"], options["secret"]), **found) for place in places]


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore pipeline check digits_lifecycle -n kubeflow --image registry/image@sha256:…
  kfp-mindspore pipeline check scheduled_retraining -n kubeflow --image … -p data=s3://bucket/data/
  kfp-mindspore pipeline check pipeline.yaml -n my-profile --service-account default-editor --json""",
)
@click.argument(
    "source",
    metavar="[NAME|FILE.py[:FUNCTION]|FILE.yaml]",
    required=False,
    default="",
    shell_complete=complete_pipelines,
)
@add_account_options
@click.option("--image", envvar=IMAGE_VARIABLE, default="", help="Image of the steps. [env: KFP_MINDSPORE_IMAGE]")
@add_parameters
@click.option("--pipeline-root", default="", help="URI of the run's artifacts. [default: the namespace's]")
@add_json_option
def check(
    source: str,
    parameters: tuple[tuple[str, str], ...],
    namespace: str,
    service_account: str,
    training: tuple[str, ...],
    deployment: tuple[str, ...],
    images: tuple[str, ...],
    secrets: tuple[str, ...],
    model_account: str,
    image: str,
    pipeline_root: str,
    kubeconfig: Path | None,
    context: str | None,
    as_json: bool,
) -> int:
    """Check before a run that a cluster has what its steps need, and that URIs of data can be read.

    Exit code 1 if something is missing; unknown results, of checks without the necessary rights, do not count.
    """
    from kfp_mindspore.kube.cluster import Cluster
    from kfp_mindspore.runs.preflight import Destination, run_checks
    from kfp_mindspore.runs.sources import compile_text
    from kfp_mindspore.runs.spec import convert_arguments, parse_spec

    if parameters and not source:
        raise UserError("--param: needs a pipeline: kfp-mindspore pipeline check NAME … --param NAME=VALUE")
    account = _make_account(namespace, service_account, (*training, *deployment, *images), secrets, model_account)
    text = compile_text(source, image) if source else ""
    spec = parse_spec(text, subject=source) if source else None
    arguments = convert_arguments(spec, dict(parameters)) if spec is not None and parameters else {}
    destination = Destination(
        account,
        {"training": training, "deployment": deployment, "images": images},
        secrets=secrets,
        model_account=model_account,
        pipeline_root=pipeline_root,
    )
    results = [*_check_storage(spec, text), *run_checks(Cluster(kubeconfig, context), destination, spec, arguments)]
    passed = all(result.status != "failed" for result in results)
    if as_json:
        print_json({"passed": passed, "checks": [dataclasses.asdict(result) for result in results]})
    else:
        print_table([dataclasses.asdict(result) for result in results], ["status", "name", "message"])
        for hint in dict.fromkeys(result.hint for result in results if result.hint and result.status != "passed"):
            click.echo(hint)
    return 0 if passed else 1


def _check_storage(spec: dict[str, Any] | None, text: str) -> list[CheckResult]:
    """Check how a pipeline's jobs hand over their data; nothing for a pipeline without jobs."""
    from kfp_mindspore.runs.preflight import CheckResult, list_capabilities
    from kfp_mindspore.steps.handover.storage_spec import list_storage_errors

    if spec is None or "training" not in list_capabilities(spec):
        return []
    if errors := list_storage_errors(text):
        return [
            CheckResult("storage", "failed", error, "See the parameter storage of train_msjob.") for error in errors
        ]
    return [CheckResult("storage", "passed", "jobs have access to their data")]


def _make_account(
    namespace: str, name: str, others: tuple[str, ...], secrets: tuple[str, ...], model_account: str
) -> ServiceAccount:
    errors = list_namespace_errors("namespace", namespace, *others) + list_name_errors("--service-account", name)
    errors += list_name_errors("--model-account", *filter(None, [model_account]))
    if errors := errors + list_name_errors("--secret", *secrets):
        raise UserError("; ".join(errors))
    return ServiceAccount(name, namespace)
