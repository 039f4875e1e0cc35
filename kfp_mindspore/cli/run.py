"""`kfp-mindspore run`: run a pipeline locally."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.completion import complete_pipelines
from kfp_mindspore.cli.shared.output import PairType, add_json_option, print_json
from kfp_mindspore.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from kfp_mindspore.runs.report.result import RunResult


_PIPE_WIDTH = 240

add_accept_changes = click.option(
    "--accept-changes", is_flag=True, help="Resume although code has changed; finished steps that it affects run again."
)


@click.command(
    cls=StrictCommand,
    epilog="""\b
Examples:
  kfp-mindspore run digits_lifecycle
  kfp-mindspore run digits_lifecycle --param epochs=5 --param threshold=0.9 --json
  kfp-mindspore run my-project/pipeline.py:train_and_serve --keep
  kfp-mindspore run compiled.yaml --no-cache
  kfp-mindspore run my-project/pipeline.py --resume""",
)
@click.argument("source", metavar="NAME|FILE.py[:FUNCTION]|FILE.yaml", shell_complete=complete_pipelines)
@click.option("-p", "--param", "parameters", type=PairType(), multiple=True, help="Pipeline argument; repeatable.")
@click.option("--keep", is_flag=True, help="Keep services and jobs after the run; stop a service with `service stop`.")
@click.option("--no-cache", is_flag=True, help="Run all steps, including those with unchanged inputs and code.")
@click.option("--resume", is_flag=True, help="Continue the pipeline's last run, as `runs resume` does.")
@add_accept_changes
@click.option("-v", "--verbose", is_flag=True, help="Print the output of the steps.")
@add_json_option
def run(
    source: str,
    parameters: tuple[tuple[str, str], ...],
    keep: bool,
    no_cache: bool,
    resume: bool,
    accept_changes: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run a pipeline on this machine, each step as a subprocess, without a cluster.

    Exit codes: 0: succeeded; 1: a step failed; 2: usage error; 3: a gate was not met and nothing was deployed.
    """
    if resume:
        from kfp_mindspore.runs.local.resume import get_last_run

        if parameters or keep or no_cache:
            raise UserError("--resume: uses the run's own parameters and options, got further ones")
        resume_and_show(get_last_run(source).id, accept_changes=accept_changes, verbose=verbose, as_json=as_json)
        return
    if accept_changes:
        raise UserError("--accept-changes: needs --resume")
    result = run_and_show(source, parameters, keep=keep, cache=not no_cache, verbose=verbose, as_json=as_json)
    print_outcome(result, as_json=as_json)
    if not as_json:
        print_service(result, keep=keep)


def run_and_show(
    source: str,
    parameters: Sequence[tuple[str, str]] = (),
    *,
    keep: bool = False,
    cache: bool = True,
    verbose: bool = False,
    as_json: bool = False,
) -> RunResult:
    """Run a pipeline and display its progress on standard output, or on standard error with `as_json`."""
    from kfp_mindspore.runs.local.run import run_local

    return _show(
        functools.partial(run_local, source, dict(parameters), keep=keep, cache=cache), verbose=verbose, as_json=as_json
    )


def resume_and_show(run_id: str, *, accept_changes: bool, verbose: bool, as_json: bool) -> None:
    """Continue a run, display its progress and print its result."""
    from kfp_mindspore.runs.local.resume import resume_local

    result = _show(
        functools.partial(resume_local, run_id, accept_changes=accept_changes), verbose=verbose, as_json=as_json
    )
    print_outcome(result, as_json=as_json)


def _show(execute: Callable[..., RunResult], *, verbose: bool, as_json: bool) -> RunResult:
    from kfp_mindspore.runs.report.progress import ProgressDisplay

    stream = sys.stderr if as_json else sys.stdout
    with ProgressDisplay(stream, bar=False if verbose else None) as display:
        return execute(
            on_progress=display,
            on_log=(lambda line: print(line, file=stream, flush=True)) if verbose else None,
            raise_on_error=False,
        )


def print_outcome(result: RunResult, *, as_json: bool) -> None:
    """Print a local run's result, then raise its error if it failed."""
    if not result.steps:
        result.check()
    if as_json:
        print_json(result.to_dict())
    else:
        print_summary(result)
    result.check()


def print_service(result: RunResult, *, keep: bool) -> None:
    """Print whether the run's service is still there; nothing for a run without one."""
    if not result.get_output("url"):
        return
    if keep:
        service = result.get_output("name")
        click.echo(f"The service keeps running. Stop it with: kfp-mindspore service stop {service}")
    else:
        click.echo("The service was stopped with the run; --keep keeps it running.")


def print_summary(result: RunResult) -> None:
    """Print a local run's result, its time and its report's path."""
    console = print_result(result)
    console.print(f"{result.seconds:.1f} s total, {result.overhead_seconds:.1f} s of it start-up, imports and waiting.")
    for note in result.notes:
        console.print(f"Note: {note}", markup=False)
    if result.report:
        # A path must not be split.
        console.print(f"Report: {result.report}", soft_wrap=True)


def print_result(result: RunResult) -> Console:
    """Print a run's step table and prediction; return the console."""
    from rich.console import Console
    from rich.table import Table

    # Rows must not wrap in a file or a pipe.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("STEP", no_wrap=True)
    table.add_column("SECONDS", justify="right", no_wrap=True)
    table.add_column("RESULT", overflow="fold")
    for step in result.steps.values():
        outcome = step.describe()
        if step.state == "cached":
            outcome = "cached" if outcome == "cached" else f"cached: {outcome}"
        table.add_row(step.name, "" if step.state == "skipped" else f"{step.seconds:.1f}", outcome)
    console.print()
    if result.steps:
        console.print(table)
        console.print()
    prediction = result.get_output("prediction")
    if prediction is not None:
        label = result.get_output("label")
        expected = f" with label {label}" if label is not None else ""
        console.print(
            f"{result.get_output('url') or 'The service'} predicted {prediction} for a test sample{expected}."
        )
    return console
