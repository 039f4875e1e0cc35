"""`kfp-mindspore pipeline run|get|retry|terminate|schedule`: runs on a Kubeflow Pipelines server."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore.cli.pipeline.options import (
    PipelineServerOptions,
    RunOptions,
    add_run_options,
    add_server_options,
    add_source,
)
from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.output import add_json_option, print_json, print_table
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from kfp_mindspore.runs.remote.client import RemoteClient
    from kfp_mindspore.runs.remote.records import RemoteRun
    from kfp_mindspore.runs.report.result import RunResult

# `RunResult.to_dict` fields that a run on a server has.
_RESULT_FIELDS = (
    *("state", "metric", "value", "samples", "prediction", "label", "url", "max_abs_diff"),
    *("gates", "seconds", "notes", "error"),
)
_WAIT = click.option(
    "--wait",
    is_flag=True,
    help="Wait until the run has finished; exit code 1 if it failed, 3 if a gate was not met.",
)
_TIMEOUT = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds to wait; implies --wait. [default: none]",
)


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore pipeline run digits_lifecycle --host http://127.0.0.1:8888 --image registry/image@sha256:…
  kfp-mindspore pipeline run my-project/pipeline.py -p epochs=40 --wait""",
)
@add_source
@add_run_options
@click.option("--name", default="", help="Name of the run. [default: the pipeline's with the time]")
@_WAIT
@_TIMEOUT
@add_server_options
@add_json_option
def run(
    source: str,
    image: str,
    parameters: tuple[tuple[str, str], ...],
    name: str,
    options: RunOptions,
    wait: bool,
    timeout: float | None,
    server: PipelineServerOptions,
    as_json: bool,
) -> None:
    """Start a run on Kubeflow Pipelines (`kfp-mindspore run` runs locally)."""
    client, text = server.prepare(source, image)
    started = client.run(text, dict(parameters), name=name, **options.to_arguments())
    _finish(client, started, wait=wait, timeout=timeout, as_json=as_json)


@click.command(
    cls=StrictCommand, epilog="Example: kfp-mindspore pipeline get 6f2c… --host http://127.0.0.1:8888 --wait"
)
@click.argument("run_id")
@_WAIT
@_TIMEOUT
@add_server_options
@add_json_option
def get(run_id: str, wait: bool, timeout: float | None, server: PipelineServerOptions, as_json: bool) -> None:
    """Show a run: its state, its steps' states, and the reason and last lines of failed steps."""
    client = server.connect()
    if wait or timeout is not None:
        found = client.wait(run_id, timeout=timeout, on_change=_make_printer(as_json), on_obstacle=_print_obstacle)
    else:
        found = client.get_run(run_id)
    failed = client.explain_failure(found) if found.state == "FAILED" else []
    left = client.list_left_jobs(found) if found.state == "FAILED" else []
    obstacles = client.list_obstacles(found)
    if found.state == "SUCCEEDED":
        if not as_json:
            click.echo(f"{found.name}: {found.state}\n{found.url}")
        result = _print_result(client.read_result(run_id), {**dataclasses.asdict(found), "failed": []}, as_json)
        if wait or timeout is not None:
            result.check()
        return
    if as_json:
        steps = [dataclasses.asdict(step) for step in failed]
        print_json({**dataclasses.asdict(found), "failed": steps, "left_jobs": left, "obstacles": obstacles})
        return
    click.echo(f"{found.name}: {found.state}{' (terminated)' if found.is_terminated else ''}\n{found.url}")
    if found.note:
        click.echo(f"Note: {found.note}")
    if found.steps:
        print_table([{"step": name, "state": state} for name, state in found.steps.items()], ["step", "state"])
    for step in failed:
        click.echo(f"{step.name}: {step.reason or 'failed'}")
        for line in step.log:
            click.echo(f"  | {line}")
    for sentence in [*obstacles, *left]:
        click.echo(sentence)


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore pipeline retry 6f2c… --host http://127.0.0.1:8888 --wait
  kfp-mindspore pipeline retry 6f2c… --image registry/image@sha256:… --keep-steps load-dataset,train-msjob""",
)
@click.argument("run_id")
@click.option("--image", default="", help="Start the run's pipeline anew with this image and the same arguments.")
@click.option(
    "--keep-steps",
    "kept",
    default="",
    metavar="STEP,…",
    help="Succeeded steps that keep the former image and so their cached results; with --image.",
)
@_WAIT
@_TIMEOUT
@add_server_options
@add_json_option
def retry(
    run_id: str,
    image: str,
    kept: str,
    wait: bool,
    timeout: float | None,
    server: PipelineServerOptions,
    as_json: bool,
) -> None:
    """Retry a failed or terminated run: its failed steps and those after them run again.

    With --image a new run starts, since a run's image is fixed.
    """
    if kept and not image:
        raise UserError("--keep-steps: needs --image", hint="A retry with the same image keeps all succeeded steps.")
    client = server.connect()
    steps = [name.strip() for name in kept.split(",") if name.strip()]
    started = client.run_again(run_id, image, keep_steps=steps) if image else client.retry(run_id)
    _finish(client, started, wait=wait, timeout=timeout, as_json=as_json)


@click.command(cls=StrictCommand, epilog="Example: kfp-mindspore pipeline terminate 6f2c… --host http://127.0.0.1:8888")
@click.argument("run_id")
@add_server_options
@add_json_option
def terminate(run_id: str, server: PipelineServerOptions, as_json: bool) -> None:
    """Terminate a run; Kubeflow Pipelines reports it as FAILED."""
    server.connect().terminate(run_id)
    if as_json:
        print_json({"id": run_id, "action": "terminated"})
    else:
        click.echo(f"{run_id} terminated")


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore pipeline schedule my-project/pipeline.py --name nightly --cron "0 3 * * *"
  kfp-mindspore pipeline schedule digits_lifecycle --name hourly --every 3600 --image registry/image@sha256:…""",
)
@add_source
@add_run_options
@click.option("--name", required=True, help="Name of the schedule.")
@click.option("--cron", default="", help="Minute, hour, day, month and weekday; a first of six fields is seconds.")
@click.option("--every", type=click.IntRange(min=1), help="Interval in seconds, in place of --cron.")
@click.option(
    "--max-concurrency", type=click.IntRange(1, 10), default=1, show_default=True, help="Runs that may run at once."
)
@click.option("--catch-up", is_flag=True, help="Run once for each time missed while disabled.")
@add_server_options
@add_json_option
def schedule(
    source: str,
    image: str,
    parameters: tuple[tuple[str, str], ...],
    options: RunOptions,
    name: str,
    cron: str,
    every: int | None,
    max_concurrency: int,
    catch_up: bool,
    server: PipelineServerOptions,
    as_json: bool,
) -> None:
    """Run a pipeline at fixed times, by a recurring run of Kubeflow Pipelines."""
    client, text = server.prepare(source, image)
    created = client.schedule(
        text,
        dict(parameters),
        name=name,
        cron=cron,
        every_seconds=every,
        max_concurrency=max_concurrency,
        catch_up=catch_up,
        **options.to_arguments(),
    )
    if as_json:
        print_json(dataclasses.asdict(created))
    else:
        click.echo(f"{created.name}: {created.when}\n{created.url}")


def _finish(client: RemoteClient, started: RemoteRun, *, wait: bool, timeout: float | None, as_json: bool) -> None:
    """Print a started run; if requested, wait for its end and print its result."""
    click.echo(f"{started.name}: {started.url}", err=as_json)
    if wait or timeout is not None:
        started = client.wait(
            started.run_id, timeout=timeout, on_change=_make_printer(as_json), on_obstacle=_print_obstacle
        )
        _print_result(client.read_result(started.run_id), dataclasses.asdict(started), as_json).check()
    elif as_json:
        print_json(dataclasses.asdict(started))


def _print_result(result: RunResult, document: dict[str, Any], as_json: bool) -> RunResult:
    """Print a finished run's result, as JSON within its document, and return it."""
    if as_json:
        print_json({**document, "result": {name: result.to_dict()[name] for name in _RESULT_FIELDS}})
        return result
    from kfp_mindspore.cli.run import print_result

    console = print_result(result)
    for note in result.notes:
        console.print(f"Note: {note}", markup=False)
    return result


def _make_printer(as_json: bool) -> Callable[[RemoteRun], None]:
    """Return a function that prints each run state and step state once."""
    printed: set[str] = set()

    def show(run: RemoteRun) -> None:
        for line in (*(f"{step}: {state}" for step, state in run.steps.items()), run.state):
            if line not in printed:
                click.echo(line, err=as_json)
            printed.add(line)

    return show


def _print_obstacle(text: str) -> None:
    click.echo(f"Waiting: {text}", err=True)
