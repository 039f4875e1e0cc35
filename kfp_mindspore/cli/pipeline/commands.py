"""`kfp-mindspore pipeline`: list, compile and upload pipelines; the group for all commands on pipelines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from kfp_mindspore.cli.pipeline.cluster import check, setup
from kfp_mindspore.cli.pipeline.options import PipelineServerOptions, add_server_options, add_source
from kfp_mindspore.cli.pipeline.runs import get, retry, run, schedule, terminate
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json, print_json_list, print_table
from kfp_mindspore.errors import UserError
from kfp_mindspore.outputs import check_output_file, has_mark


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore pipeline compile digits_lifecycle -o pipeline.yaml")
def pipeline() -> None:
    """List, compile and check pipelines; run them on Kubeflow Pipelines."""


for _command in (setup, check, run, get, retry, terminate, schedule):
    pipeline.add_command(_command)


@pipeline.command("list", epilog="Example: kfp-mindspore pipeline list")
@add_json_option
def list_(as_json: bool) -> None:
    """List this package's pipelines; `kfp pipeline list` and `kfp run list` show a server's."""
    from kfp_mindspore.runs.compiled.sources import list_pipelines

    rows = [{"name": name, "description": description} for name, description in list_pipelines().items()]
    if as_json:
        print_json_list(rows)
    else:
        print_table(rows, ["name", "description"])


@pipeline.command(
    "compile",
    epilog="""\b
Examples:
  kfp-mindspore pipeline compile digits_lifecycle -o pipeline.yaml
  kfp-mindspore pipeline compile my-project/pipeline.py -o mine.yaml --image registry/mine@sha256:…""",
)
@add_source
@click.option("-o", "--output", required=True, type=OutputPath(), help="Output file, .yaml or .yml.")
@add_json_option
def compile_(source: str, output: Path, image: str, as_json: bool) -> None:
    """Compile a pipeline to YAML for the upload page of Kubeflow Pipelines."""
    from kfp_mindspore import files
    from kfp_mindspore.runs.compiled.image import list_placeholders
    from kfp_mindspore.runs.compiled.package import WORKSPACE_HINT, get_workspace_error
    from kfp_mindspore.runs.compiled.sources import compile_text, get_file
    from kfp_mindspore.runs.compiled.spec import get_pipeline_name, list_steps, parse_spec
    from kfp_mindspore.steps.handover.storage_spec import check_pipeline

    if output.suffix not in (".yaml", ".yml"):
        raise UserError(f"output: must end in .yaml or .yml, as Kubeflow Pipelines requires, got {output}")
    check_output_file(output, "a compiled pipeline", lambda file: has_mark(file, "pipelineInfo:"), [get_file(source)])
    if not output.absolute().parent.is_dir():
        raise UserError(f"output: {output.parent}: no such directory", hint=f"Create it: mkdir -p {output.parent}")
    text = compile_text(source, image)
    spec = parse_spec(text, subject=source)
    check_pipeline(text)
    try:
        files.write_text(output, text)
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror or error}") from error
    placeholders = list_placeholders(spec)
    if as_json:
        print_json(
            {"file": str(output), "name": get_pipeline_name(spec), "steps": list_steps(spec), "image": image or None}
        )
    else:
        click.echo(f"{output}: {get_pipeline_name(spec)}, {len(list_steps(spec))} steps")
    if problem := get_workspace_error(text):
        click.echo(f"{problem}. {WORKSPACE_HINT}", err=True)
    if placeholders:
        click.echo(
            f"The steps have the placeholder image {placeholders[0]}: set --image before a run on a cluster.",
            err=True,
        )


@pipeline.command(epilog="Example: kfp-mindspore pipeline upload my-project/pipeline.py --host http://127.0.0.1:8888")
@add_source
@click.option("--name", default="", help="Name on the server. [default: the pipeline's]")
@click.option("--version", default="", help="Name of the version of an existing pipeline. [default: from its digest]")
@click.option("--description", default="", help="Description on the server.")
@add_server_options
@add_json_option
def upload(
    source: str, image: str, name: str, version: str, description: str, server: PipelineServerOptions, as_json: bool
) -> None:
    """Upload a pipeline to Kubeflow Pipelines, as a new version if it exists."""
    client, text = server.prepare(source, image)
    uploaded = client.upload(text, name=name, version=version, description=description)
    if as_json:
        print_json(dataclasses.asdict(uploaded))
        return
    click.echo(f"{uploaded.name}: uploaded{f' as version {uploaded.version}' if uploaded.version else ''}")
    click.echo(uploaded.url)
