"""`kfp-mindspore pipeline setup|check`: what a run's steps need on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore.cli.image.options import RegistryOptions, add_registries
from kfp_mindspore.cli.pipeline.options import add_parameters
from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.completion import complete_pipelines
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import add_json_option, dump_manifest, print_json, print_json_list, print_table
from kfp_mindspore.errors import UserError
from kfp_mindspore.kube.names import list_name_errors, list_namespace_errors
from kfp_mindspore.runs.cluster.access import CAPABILITIES, PERMISSIONS, Capability, ServiceAccount
from kfp_mindspore.settings import IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.kube.cluster import Cluster
    from kfp_mindspore.runs.cluster.preflight import CheckResult

DEFAULT_ACCOUNT = "pipeline-runner"
NETWORK_POLICY_HELP = "Let only MSJob pods connect to MSJob pods, by a NetworkPolicy in each job namespace."


@dataclass(frozen=True)
class AccountOptions:
    """A run's account, its namespaces and the cluster.

    Args:
        namespace: Namespace of the runs.
        service_account: Service account of the steps; default-editor in a profile of Kubeflow.
        training: Namespace of the MSJobs and RayJobs. [default: -n]
        deployment: Namespace of services. [default: -n]
        images: Namespace of image builds, which it enables.
        secrets: Secret of the artifact store, besides KFP's own.
        model_account: Service account of services, with the Secret of the model's store.
        kubeconfig: A kubeconfig file. [default: KUBECONFIG, ~/.kube/config]
        context: Context of the kubeconfig. [default: its current one]
    """

    namespace: str
    service_account: str = DEFAULT_ACCOUNT
    training: Sequence[str] = ()
    deployment: Sequence[str] = ()
    images: Sequence[str] = ()
    secrets: Sequence[str] = ()
    model_account: str = ""
    kubeconfig: Path | None = None
    context: str | None = None

    @property
    def namespaces(self) -> dict[Capability, Sequence[str]]:
        """The namespaces by capability."""
        return {"training": self.training, "ray": self.training, "deployment": self.deployment, "images": self.images}

    def make_account(self) -> ServiceAccount:
        """Return the steps' service account.

        Raises:
            UserError: A name is invalid.
        """
        others = (*self.training, *self.deployment, *self.images)
        errors = list_namespace_errors("namespace", self.namespace, *others)
        errors += list_name_errors("--service-account", self.service_account)
        errors += list_name_errors("--model-account", *filter(None, [self.model_account]))
        if errors := errors + list_name_errors("--secret", *self.secrets):
            raise UserError("; ".join(errors))
        return ServiceAccount(self.service_account, self.namespace)

    def open_cluster(self) -> Cluster:
        """Return the client for the cluster."""
        from kfp_mindspore.kube.cluster import Cluster

        return Cluster(self.kubeconfig, self.context)


_add_account_options = dataclass_options(
    AccountOptions,
    into="access",
    names={
        "namespace": "-n --namespace",
        "training": "--job-namespace",
        "deployment": "--service-namespace",
        "images": "--build-namespace",
        "secrets": "--secret",
    },
    types={"kubeconfig": click.Path(path_type=Path)},
)


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore pipeline setup -n kubeflow > access.yaml
  kfp-mindspore pipeline setup -n my-profile --service-account default-editor --apply
  kfp-mindspore pipeline setup -n kubeflow --model-account model-reader --apply""",
)
@_add_account_options
@click.option(
    "--for",
    "capabilities",
    type=click.Choice(CAPABILITIES),
    multiple=True,
    help="Only what these steps need; repeatable. [default: all but ray and images; --build-namespace adds images]",
)
@click.option("--store-endpoint", default="", help="URL of the model's store. [default: that of kfp-launcher]")
@click.option("--network-policy", is_flag=True, help=NETWORK_POLICY_HELP)
@click.option("--apply", is_flag=True, help="Apply the objects to the cluster instead of printing them.")
@add_json_option
def setup(
    access: AccountOptions,
    capabilities: tuple[Capability, ...],
    store_endpoint: str,
    network_policy: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Print or apply the Roles and RoleBindings that the steps of runs need.

    With --model-account also the service account with which KServe reads models, and with --apply its Secret, a copy of
    the artifact store's credentials in KServe's form. With a --job-namespace other than -n, --apply copies the store's
    Secrets there for the jobs' pods. Credentials are never printed.
    """
    from kfp_mindspore.inference.store_account import build_account
    from kfp_mindspore.runs.cluster.access import build_access, build_network_policy, list_default_capabilities

    account, model_account = access.make_account(), access.model_account
    if store_endpoint and not (model_account and store_endpoint.startswith(("http://", "https://"))):
        raise UserError("--store-endpoint: must be http://… or https://…, together with --model-account")
    names = capabilities or list_default_capabilities(has_builds=bool(access.images))
    chosen = {name: access.namespaces.get(name) or (access.namespace,) for name in PERMISSIONS if name in names}
    documents = build_access(account, chosen, access.secrets)
    if network_policy:
        if "training" not in chosen:
            raise UserError("--network-policy: there is no namespace of jobs; add --for training")
        documents += [build_network_policy(place) for place in dict.fromkeys(chosen.get("training", ()))]
    places = (access.deployment or (access.namespace,)) if model_account else ()
    documents += [build_account(model_account, place) for place in places]
    jobs = [place for name in ("training", "ray") for place in chosen.get(name, ()) if place != access.namespace]
    if not apply:
        if model_account:
            click.echo(f"The Secret {model_account} holds credentials and is not printed: --apply makes it.", err=True)
        for place in dict.fromkeys(jobs):
            click.echo(
                f"The artifact store's Secrets hold credentials and are not printed: --apply copies them to namespace "
                f"{place}.",
                err=True,
            )
        if as_json:
            print_json_list(documents)
        else:
            click.echo("---\n".join(dump_manifest(document) for document in documents), nl=False)
        return
    cluster = access.open_cluster()
    documents += _build_secrets(cluster, access.namespace, model_account, places, store_endpoint)
    documents += _copy_secrets(cluster, access.namespace, jobs)
    applied = []
    for document in documents:
        metadata = cluster.apply(document)["metadata"]
        applied.append(f"{document['kind'].lower()}/{metadata['name']} in namespace {metadata['namespace']}")
        if not as_json:
            click.echo(f"{applied[-1]} applied")
    if as_json:
        print_json({"applied": applied})


def _copy_secrets(cluster: Cluster, namespace: str, places: Sequence[str]) -> list[dict[str, Any]]:
    """Return the store Secrets' copies for jobs in other namespaces; foreign ones with the same name stay."""
    from kfp_mindspore.runs.cluster.store_secrets import list_copies

    documents = []
    for copied in list_copies(cluster, namespace, places):
        if not copied.is_foreign:
            documents.append(copied.build())
        elif not copied.is_current:
            click.echo(
                f"secret/{copied.name} in namespace {copied.namespace} is no copy of that in namespace {namespace} "
                "and differs from it: left unchanged, jobs there use its credentials",
                err=True,
            )
    return documents


def _build_secrets(
    cluster: Cluster, namespace: str, name: str, places: Sequence[str], endpoint: str
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
@_add_account_options
@click.option("--image", envvar=IMAGE_VARIABLE, default="", help="Image of the steps. [env: KFP_MINDSPORE_IMAGE]")
@add_parameters
@click.option("--pipeline-root", default="", help="URI of the run's artifacts. [default: the namespace's]")
@add_registries
@add_json_option
def check(
    source: str,
    parameters: tuple[tuple[str, str], ...],
    access: AccountOptions,
    image: str,
    pipeline_root: str,
    registry: RegistryOptions,
    as_json: bool,
) -> int:
    """Check before a run that a cluster and its image have what its steps need, and that URIs of data can be read.

    Namespaces of jobs and services are those that the pipeline's steps name, unless flags name others.

    Exit code 1 if something is missing; unknown results, of checks without the necessary rights, do not count.
    """
    from kfp_mindspore.runs.cluster.preflight import Destination, run_checks
    from kfp_mindspore.runs.cluster.step_needs import list_namespaces
    from kfp_mindspore.runs.compiled.sources import compile_text
    from kfp_mindspore.runs.compiled.spec import convert_arguments, parse_spec

    if parameters and not source:
        raise UserError("--param: needs a pipeline: kfp-mindspore pipeline check NAME … --param NAME=VALUE")
    account = access.make_account()
    text = compile_text(source, image) if source else ""
    spec = parse_spec(text, subject=source) if source else None
    arguments = convert_arguments(spec, dict(parameters)) if spec is not None and parameters else {}
    named = list_namespaces(spec, arguments, account.namespace) if spec is not None else {}
    destination = Destination(
        account,
        # Flags take precedence: they also name namespaces that are known in the run only.
        {**named, **{name: places for name, places in access.namespaces.items() if places}},
        secrets=access.secrets,
        model_account=access.model_account,
        pipeline_root=pipeline_root,
    )
    found = run_checks(access.open_cluster(), destination, spec, arguments, open_registries=registry.make_config)
    results = [*_check_storage(spec, text), *found]
    passed = all(result.status != "failed" for result in results)
    if as_json:
        print_json({"passed": passed, "checks": [dataclasses.asdict(result) for result in results]})
    else:
        print_table([dataclasses.asdict(result) for result in results], ["status", "name", "message"])
        for hint in dict.fromkeys(result.hint for result in results if result.hint and result.status != "passed"):
            click.echo(hint)
    return 0 if passed else 1


def _check_storage(spec: dict[str, Any] | None, text: str) -> list[CheckResult]:
    """Check a pipeline's workspace and how its jobs hand over their data."""
    from kfp_mindspore.runs.cluster.preflight import CheckResult
    from kfp_mindspore.runs.cluster.step_needs import list_capabilities
    from kfp_mindspore.runs.compiled.package import WORKSPACE_HINT, get_workspace_error
    from kfp_mindspore.steps.handover.storage_spec import list_storage_errors

    if spec is None:
        return []
    failed = [
        CheckResult("storage", "failed", error, "See the parameter storage of train_msjob.")
        for error in list_storage_errors(text)
    ]
    if problem := get_workspace_error(text):
        failed.append(CheckResult("workspace", "failed", problem, WORKSPACE_HINT))
    if failed:
        return failed
    if not {"training", "ray"} & set(list_capabilities(spec)):
        return []
    return [CheckResult("storage", "passed", "jobs have access to their data")]
