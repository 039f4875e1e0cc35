"""`kfp-mindspore pipeline`: list and compile pipelines; upload and run them on a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kfp_mindspore.cli.output import PairType, add_json_option, print_json, print_table
from kfp_mindspore.cli.pipeline_cluster import check, setup
from kfp_mindspore.errors import KfpMindSporeError, UserError
from kfp_mindspore.settings import IMAGE_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.runs.remote import RemoteClient, RemoteRun

Command = TypeVar("Command", bound=Callable[..., Any])

_SOURCE = "NAME|FILE.py[:FUNCTION]|FILE.yaml"


@click.group(epilog="Example: kfp-mindspore pipeline compile digits_lifecycle -o pipeline.yaml")
def pipeline() -> None:
    """List and compile pipelines; upload and run them on a cluster."""


pipeline.add_command(setup)
pipeline.add_command(check)


def _add_source(command: Command) -> Command:
    image = click.option(
        "--image",
        envvar=IMAGE_VARIABLE,
        default="",
        help="Image of the steps and of the jobs' pods, preferably by digest. [env: KFP_MINDSPORE_IMAGE]",
    )
    return click.argument("source", metavar=_SOURCE)(image(command))


def _add_server_options(command: Command) -> Command:
    options = (
        click.option(
            "--host",
            envvar=["KFP_ENDPOINT", "KF_PIPELINES_ENDPOINT"],
            default="",
            help="URL of Kubeflow Pipelines. [env: KFP_ENDPOINT]",
        ),
        click.option("--namespace", default="", help="Your namespace on a multi-user server."),
        click.option("--token", envvar="KFP_TOKEN", default="", help="Bearer token. [env: KFP_TOKEN]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@pipeline.command("list", epilog="Example: kfp-mindspore pipeline list")
@add_json_option
def list_(as_json: bool) -> None:
    """List the pipelines of this package."""
    from kfp_mindspore.runs.sources import list_pipelines

    rows = [{"name": name, "description": description} for name, description in list_pipelines().items()]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, ["name", "description"])


@pipeline.command(
    "compile",
    epilog="""\b
Examples:
  kfp-mindspore pipeline compile digits_lifecycle -o pipeline.yaml
  kfp-mindspore pipeline compile my-project/pipeline.py -o mine.yaml --image registry/mine@sha256:…""",
)
@_add_source
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Output file, .yaml or .yml.")
@add_json_option
def compile_(source: str, output: Path, image: str, as_json: bool) -> None:
    """Compile a pipeline to YAML for the upload page of Kubeflow Pipelines."""
    from kfp_mindspore import files
    from kfp_mindspore.runs.image import list_placeholders
    from kfp_mindspore.runs.sources import compile_text
    from kfp_mindspore.runs.spec import get_pipeline_name, list_steps, parse_spec

    if output.suffix not in (".yaml", ".yml"):
        raise UserError(f"output: must end in .yaml or .yml, as Kubeflow Pipelines requires, got {output}")
    if output.is_dir():
        raise UserError(f"output: {output} is a directory, expected a file")
    text = compile_text(source, image)
    spec = parse_spec(text, subject=source)
    try:
        files.write_text(output, text)
    except OSError as error:
        raise KfpMindSporeError(f"{output}: cannot be written: {error.strerror or error}") from error
    placeholders = list_placeholders(spec)
    if as_json:
        print_json(
            {"file": str(output), "name": get_pipeline_name(spec), "steps": list_steps(spec), "image": image or None}
        )
    else:
        click.echo(f"{output}: {get_pipeline_name(spec)}, {len(list_steps(spec))} steps")
    if placeholders:
        click.echo(
            f"The steps have the placeholder image {placeholders[0]}: set --image before a run on a cluster.",
            err=True,
        )


@pipeline.command(epilog="Example: kfp-mindspore pipeline upload my-project/pipeline.py --host http://127.0.0.1:8888")
@_add_source
@click.option("--name", default="", help="Name on the server. [default: the pipeline's]")
@click.option("--version", default="", help="Name of the version of an existing pipeline. [default: from its digest]")
@click.option("--description", default="", help="Description on the server.")
@_add_server_options
@add_json_option
def upload(
    source: str,
    image: str,
    name: str,
    version: str,
    description: str,
    host: str,
    namespace: str,
    token: str,
    as_json: bool,
) -> None:
    """Upload a pipeline to Kubeflow Pipelines, as a new version if it exists."""
    client, text = _prepare(source, image, host, namespace, token)
    uploaded = client.upload(text, name=name, version=version, description=description)
    if as_json:
        print_json(dataclasses.asdict(uploaded))
        return
    click.echo(f"{uploaded.name}: uploaded{f' as version {uploaded.version}' if uploaded.version else ''}")
    click.echo(uploaded.url)


@pipeline.command(
    epilog="""\b
Examples:
  kfp-mindspore pipeline run digits_lifecycle --host http://127.0.0.1:8888 --image registry/image@sha256:…
  kfp-mindspore pipeline run my-project/pipeline.py -p epochs=40 --wait"""
)
@_add_source
@click.option("-p", "--param", "parameters", type=PairType(), multiple=True, help="Pipeline argument; repeatable.")
@click.option("--name", default="", help="Name of the run. [default: the pipeline's with the time]")
@click.option("--experiment", default="Default", show_default=True, help="Experiment of the run.")
@click.option("--pipeline-root", default="", help="URI of the artifacts, such as s3://bucket/runs.")
@click.option("--service-account", default="", help="Service account of the steps.")
@click.option("--no-cache", is_flag=True, help="Disable caching.")
@click.option("--wait", is_flag=True, help="Wait until the run has finished; exit code 1 if it failed.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds to wait. [default: no limit]")
@_add_server_options
@add_json_option
def run(
    source: str,
    image: str,
    parameters: tuple[tuple[str, str], ...],
    name: str,
    experiment: str,
    pipeline_root: str,
    service_account: str,
    no_cache: bool,
    wait: bool,
    timeout: float | None,
    host: str,
    namespace: str,
    token: str,
    as_json: bool,
) -> None:
    """Start a run on Kubeflow Pipelines (`kfp-mindspore run` runs locally)."""
    client, text = _prepare(source, image, host, namespace, token)
    started = client.run(
        text,
        dict(parameters),
        name=name,
        experiment=experiment,
        cache=not no_cache,
        pipeline_root=pipeline_root,
        service_account=service_account,
    )
    click.echo(f"{started.name}: {started.url}", err=as_json)

    def show(run: RemoteRun) -> None:
        click.echo(run.state, err=as_json)

    if wait or timeout is not None:
        started = client.wait(started.run_id, timeout=timeout, on_state=show)
    if as_json:
        print_json(dataclasses.asdict(started))


def _prepare(source: str, image: str, host: str, namespace: str, token: str) -> tuple[RemoteClient, str]:
    """Compile the pipeline, then connect: errors of the pipeline are reported without a server."""
    from kfp_mindspore.runs.remote import RemoteClient, check_package
    from kfp_mindspore.runs.server import check_host
    from kfp_mindspore.runs.sources import check_source, compile_text

    check_source(source)
    check_host(host)
    text = compile_text(source, image)
    check_package(text)
    return RemoteClient(host, namespace=namespace, token=token), text
