"""`kfp-mindspore job`: submit, follow and delete training jobs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore.cli.job.document import (
    FLAG_NAMES,
    WITHOUT_FLAG,
    fill_images,
    mount_claims,
    read_job,
    refuse_description,
    set_namespace,
)
from kfp_mindspore.cli.job.kinds import KINDS, convert, submit_as
from kfp_mindspore.cli.job.report import (
    WaitingReport,
    get_state,
    print_detached,
    print_failed_job,
    print_job,
    print_jobs,
    print_output_directory,
    print_waiting,
    print_warning,
    warn_of_missing_operator,
)
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.completion import complete_jobs
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, PairType, add_json_option, print_json, print_json_list
from kfp_mindspore.cli.shared.target import BackendOptions, add_target_options
from kfp_mindspore.errors import UserError
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.missing_operator import report_missing_operator
from kfp_mindspore.settings import IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.msjob.backends.base import Pod

REPLICA_TYPES = {"scheduler": "Scheduler", "ps": "PS", "worker": "Worker"}
CONDITIONS = ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore job submit --name lenet --workers 2 -- python train.py")
def job() -> None:
    """Submit, follow and delete training jobs (MSJob)."""


@job.command(
    epilog="Examples: kfp-mindspore job submit job.yaml; "
    "kfp-mindspore job submit --name lenet --workers 2 --dataset data --output out -- python train.py --epochs 5"
)
@click.argument("words", nargs=-1, metavar="FILE | -- COMMAND [ARG]...")
@click.option("--name", help="Name of the job; the words after `--` are the workers' command.")
@dataclass_options(JobOptions, without=WITHOUT_FLAG, names=FLAG_NAMES)
@click.option(
    "--claim",
    "claims",
    type=PairType(has_unique_keys=False),
    multiple=True,
    help="A PersistentVolumeClaim and its mount path in the workers, such as digits=/data; repeatable.",
)
@click.option("--dataset", type=click.Path(), help="Dataset directory, passed in KFP_MINDSPORE_DATASET_DIR.")
@click.option("--output", type=OutputPath(or_uri=True), help="Output directory, passed in KFP_MINDSPORE_OUTPUT_DIR.")
@click.option("--checkpoints", type=OutputPath(or_uri=True), help="Checkpoint directory. [default: in --output]")
@click.option(
    "--image",
    envvar=IMAGE_VARIABLE,
    help="Image of the workers, also of those in FILE that name none; a job on this machine runs in this environment "
    "instead.",
)
@click.option(
    "--kind",
    type=click.Choice(["MSJob", *KINDS], case_sensitive=False),
    default="MSJob",
    show_default=True,
    help="Submit it as this kind, on a cluster with its operator; see docs/job-kinds.md.",
)
@click.option("--wait", is_flag=True, help="Show its log and wait for its end; Ctrl-C lets it continue.")
@click.option("--dry-run", is_flag=True, help="Only validate it, on a cluster by the API server, and print the result.")
@add_target_options
@add_json_option
def submit(
    words: tuple[str, ...],
    name: str | None,
    options: JobOptions,
    claims: tuple[tuple[str, str], ...],
    dataset: str | None,
    output: str | None,
    checkpoints: str | None,
    wait: bool,
    dry_run: bool,
    image: str | None,
    kind: str,
    target: BackendOptions,
    as_json: bool,
) -> None:
    """Submit a job: the MSJob in FILE (YAML), or one that runs COMMAND in each worker.

    The job outlives this command, also a --wait that is interrupted by Ctrl-C: `job logs -f NAME` follows it, `job
    delete NAME` ends it.
    """
    from kfp_mindspore.msjob import build_msjob
    from kfp_mindspore.msjob.build import PodPatch, to_env_vars
    from kfp_mindspore.msjob.commands import build_directory_variables
    from kfp_mindspore.msjob.follow import follow_job

    if wait and dry_run:
        raise UserError("--wait: --dry-run starts nothing to wait for", hint="Use one of them.")
    client = target.make_client()
    if name is None:
        refuse_description(words)
        document = read_job(words)
        set_namespace(document, target.namespace, client.namespace)
        if target.is_cluster and image is not None:
            fill_images(document, image)
        if options.queue_labels:
            document.metadata["labels"] = {**(document.metadata.get("labels") or {}), **options.queue_labels}
    else:
        if len(words) == 1 and words[0].endswith((".yaml", ".yml")):
            raise UserError(
                f"--name: is for a command after --, got the file {words[0]}",
                hint="The name of a job in a file is its metadata.name.",
            )
        if dataset is not None and not target.is_cluster and not Path(dataset).is_dir():
            raise UserError(f"--dataset: must be a directory, got {dataset}")
        directories = build_directory_variables(dataset, output, checkpoints, in_pods=target.is_cluster)
        document = build_msjob(
            name,
            command=words,
            namespace=client.namespace,
            options=options,
            pod=PodPatch(env=to_env_vars(directories)),
            image=image,
        )
        mount_claims(document, claims)
    if kind != "MSJob":
        if wait:
            raise UserError(f"--wait: is for MSJobs, got --kind {kind}", hint="Follow it with kubectl.")
        submit_as(client, document, kind, dry_run=dry_run, as_json=as_json)
        return
    if dry_run:
        validated = client.backend.create(document, dry_run=True)
        print_json(validated.to_dict()) if as_json else click.echo(validated.to_yaml(), nl=False)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        client.create_job(document)
    for warning in caught:
        print_warning(str(warning.message))
    if wait:
        try:
            with (
                print_failed_job(client, document.name, document.namespace, as_json),
                report_missing_operator(client, document.name, document.namespace, print_warning),
            ):
                on_log = None if as_json else click.echo
                follow_job(client, document.name, document.namespace, on_log=on_log, on_waiting=print_waiting)
        except KeyboardInterrupt:
            print_detached(client.backend, document.name, document.namespace)
            raise
    submitted = client.get_job(document.name, document.namespace)
    if as_json:
        print_json(submitted.to_dict())
    elif not wait:
        follow = client.backend.name_command("logs", "-f", document.name, namespace=document.namespace)
        click.echo(f"job {document.name} submitted; follow it with: {follow}")
    else:
        click.echo(f"job {document.name}: {get_state(submitted)}")
    if not as_json:
        print_output_directory(submitted)


@job.command(epilog="Example: kfp-mindspore job get lenet")
@click.argument("name", shell_complete=complete_jobs)
@add_target_options
@add_json_option
def get(name: str, target: BackendOptions, as_json: bool) -> None:
    """Show a job: state, conditions, reason of waiting, first failure and processes."""
    client = target.make_client()
    found = client.get_job(name)
    if as_json:
        print_json(found.to_dict())
        return
    print_job(found, client.get_job_pods(name), client.backend)


@job.command("list", epilog="Example: kfp-mindspore job list --json")
@add_target_options
@add_json_option
def list_command(target: BackendOptions, as_json: bool) -> None:
    """List jobs."""
    jobs = target.make_client().list_jobs()
    if as_json:
        print_json_list([found.to_dict() for found in jobs])
    else:
        print_jobs(jobs)


@job.command(epilog="Example: kfp-mindspore job logs -f lenet --replica-type worker --index 1")
@click.argument("name", shell_complete=complete_jobs)
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has finished.")
@click.option("--replica-type", type=click.Choice(list(REPLICA_TYPES)), help="Only these. [default: worker 0]")
@click.option("--index", type=click.IntRange(min=0), help="Only this index.")
@click.option("--all", "everything", is_flag=True, help="All processes, each line prefixed with the name.")
@click.option("--tail", type=click.IntRange(min=0), help="Number of last lines.")
@add_target_options
def logs(
    name: str,
    follow: bool,
    replica_type: str | None,
    index: int | None,
    everything: bool,
    tail: int | None,
    target: BackendOptions,
) -> None:
    """Print the logs of a job's processes; -f follows them across restarts."""
    client = target.make_client()
    namespace = client.namespace

    def is_chosen(pod: Pod) -> bool:
        kind = REPLICA_TYPES[replica_type] if replica_type else None
        if everything:
            return True
        if kind is None and index is None:
            return (pod.replica_type, pod.index) == ("Worker", 0)
        return pod.replica_type == (kind or "Worker") and index in (None, pod.index)

    chosen = [pod.name for pod in client.get_job_pods(name) if is_chosen(pod)]
    if not chosen and not follow:
        warn_of_missing_operator(client.get_job(name), client.backend)
        raise UserError(
            f"job {name} has no process of that type and index",
            hint=f"See: {client.backend.name_command('get', name, namespace=namespace)}",
        )
    # On a cluster the pods may not exist yet.
    many = everything or len(chosen) > 1 or (not chosen and replica_type is not None and index is None)
    if follow:
        with report_missing_operator(client, name, namespace, print_warning):
            for pod, line in client.backend.follow_logs(name, namespace, is_chosen):
                click.echo(f"{pod}: {line}" if many else line)
        return
    for pod in chosen:
        for line in client.backend.read_log(name, namespace, pod, last=tail).splitlines():
            click.echo(f"{pod}: {line}" if many else line)


@job.command(epilog="Example: kfp-mindspore job wait lenet --timeout 600")
@click.argument("name", shell_complete=complete_jobs)
@click.option("--timeout", type=click.FloatRange(min=0), default=600, show_default=True, help="Timeout in seconds.")
@click.option(
    "--for",
    "conditions",
    type=click.Choice(CONDITIONS, case_sensitive=False),
    multiple=True,
    default=("Succeeded",),
    show_default=True,
    help="Condition to wait for; of several, any.",
)
@add_target_options
@add_json_option
def wait(name: str, timeout: float, conditions: tuple[str, ...], target: BackendOptions, as_json: bool) -> None:
    """Wait for a condition of a job; exit with 1 on failure or timeout."""
    client = target.make_client()
    with (
        print_failed_job(client, name, client.namespace, as_json),
        report_missing_operator(client, name, client.namespace, print_warning),
    ):
        ended = client.wait_for_job_conditions(
            name, expected_conditions=set(conditions), wait_timeout=timeout, callback=WaitingReport()
        )
    if as_json:
        print_json(ended.to_dict())
    else:
        click.echo(f"job {name}: {get_state(ended)}")


@job.command(epilog="Example: kfp-mindspore job suspend lenet")
@click.argument("name", shell_complete=complete_jobs)
@add_target_options
@add_json_option
def suspend(name: str, target: BackendOptions, as_json: bool) -> None:
    """Terminate a job's processes with a grace period, and keep the job."""
    _update(name, {"spec": {"runPolicy": {"suspend": True}}}, "is being suspended", target, as_json)


@job.command(epilog="Example: kfp-mindspore job resume lenet")
@click.argument("name", shell_complete=complete_jobs)
@add_target_options
@add_json_option
def resume(name: str, target: BackendOptions, as_json: bool) -> None:
    """Resume a suspended job from its last checkpoint."""
    _update(name, {"spec": {"runPolicy": {"suspend": False}}}, "is being resumed", target, as_json)


@job.command(epilog="Example: kfp-mindspore job scale lenet --workers 4")
@click.argument("name", shell_complete=complete_jobs)
@click.option("--workers", type=click.IntRange(min=1), required=True, help="Number of workers.")
@add_target_options
@add_json_option
def scale(name: str, workers: int, target: BackendOptions, as_json: bool) -> None:
    """Change a job's number of workers: it restarts from the last checkpoint."""
    patch = {"spec": {"msReplicaSpecs": {"Worker": {"replicas": workers}}}}
    _update(name, patch, f"is being scaled to {workers} workers", target, as_json)


@job.command(epilog="Example: kfp-mindspore job delete lenet")
@click.argument("name", shell_complete=complete_jobs)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(min=0),
    help="Seconds between SIGTERM and SIGKILL. [default: terminationGracePeriodSeconds of the template]",
)
@add_target_options
@add_json_option
def delete(name: str, grace_seconds: float | None, target: BackendOptions, as_json: bool) -> None:
    """Delete a job and its processes."""
    client = target.make_client()
    client.backend.delete(name, client.namespace, grace_seconds=grace_seconds)
    if as_json:
        print_json({"deleted": name, "namespace": client.namespace})
    else:
        click.echo(f"job {name} deleted")


job.add_command(convert)


def _update(name: str, patch: dict[str, Any], what: str, target: BackendOptions, as_json: bool) -> None:
    client = target.make_client()
    changed = client.backend.update(name, client.namespace, patch)
    if as_json:
        print_json(changed.to_dict())
    elif changed.status is not None and changed.status.is_finished:
        click.echo(f"job {name} has finished: the change has no effect")
    else:
        click.echo(f"job {name} {what}")
