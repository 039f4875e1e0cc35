"""`kfp-mindspore runs`: list, open, compare, resume and remove local pipeline runs."""

from __future__ import annotations

import time
from pathlib import Path

import click

from kfp_mindspore import files
from kfp_mindspore.cli.run import add_accept_changes, resume_and_show
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.completion import complete_runs
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json, print_json_list, print_table
from kfp_mindspore.errors import UserError
from kfp_mindspore.evaluation.curves import read_records, render_curves
from kfp_mindspore.outputs import check_page
from kfp_mindspore.runs.local.history import find_metrics, get_run, list_runs, remove_run, select_runs


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore runs list")
def runs() -> None:
    """List, open, compare, resume and remove local runs of pipelines."""


@runs.command("list", epilog="Example: kfp-mindspore runs list --limit 5")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of newest runs.")
@add_json_option
def list_(limit: int, as_json: bool) -> None:
    """List the newest local runs; `kfp run list` shows those of a server."""
    stored = list_runs()
    found = stored[:limit]
    if as_json:
        print_json_list([run.to_dict() for run in found])
        return
    rows = [
        {
            "run": run.id,
            "state": run.state,
            "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started)),
            "seconds": None if run.seconds is None else f"{run.seconds:.1f}",
            "size": _format_size(run.bytes),
        }
        for run in found
    ]
    print_table(rows, ["run", "state", "started", "seconds", "size"])
    if len(stored) > limit:
        click.echo(f"{len(stored) - limit} older runs: --limit {len(stored)}")


@runs.command("open", epilog="Example: kfp-mindspore runs open digits-lifecycle-20260102-120000-1a2b")
@click.argument("run_id", default="", shell_complete=complete_runs)
@click.option("--print", "only_print", is_flag=True, help="Print the path of the report instead of opening it.")
def open_(run_id: str, only_print: bool) -> None:
    """Open a run's report in the browser; by default of the newest one."""
    run = get_run(run_id)
    if run.report is None:
        raise UserError(f"run {run.id}: has no report, it is {run.state}", hint=f"Its logs: {run.directory / 'logs'}")
    click.echo(run.report)
    if not only_print:
        click.launch(run.report.as_uri())


@runs.command(epilog="Example: kfp-mindspore runs compare digits-lifecycle-20260102-120000-1a2b RUN_ID")
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...", shell_complete=complete_runs)
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    default=Path("curves.html"),
    show_default=True,
    help="Page to write.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the page's path instead of opening it.")
def compare(run_ids: tuple[str, ...], output: Path, only_print: bool) -> None:
    """Show the learning curves of several runs in one plot."""
    check_page(output)
    histories = {name: read_records(find_metrics(get_run(name))) for name in run_ids}
    files.write_text(output, render_curves("Learning curves", histories))
    click.echo(output)
    if not only_print:
        click.launch(output.absolute().as_uri())


@runs.command(epilog="Example: kfp-mindspore runs resume digits-lifecycle-20260102-120000-1a2b")
@click.argument("run_id", shell_complete=complete_runs)
@add_accept_changes
@click.option("-v", "--verbose", is_flag=True, help="Print the output of the steps.")
@add_json_option
def resume(run_id: str, accept_changes: bool, verbose: bool, as_json: bool) -> None:
    """Continue an interrupted, killed or failed run with its own parameters.

    Finished steps are taken from the cache, training continues at its last checkpoint. Steps with caching disabled,
    such as deployments, run again.
    """
    resume_and_show(run_id, accept_changes=accept_changes, verbose=verbose, as_json=as_json)


@runs.command(
    epilog="""\b
Examples:
  kfp-mindspore runs rm digits-lifecycle-20260102-120000-1a2b
  kfp-mindspore runs rm --older-than 30 --keep-last 3 --dry-run"""
)
@click.argument("run_ids", nargs=-1, metavar="[RUN_ID]...", shell_complete=complete_runs)
@click.option("--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Remove the runs of this age.")
@click.option("--keep-last", type=click.IntRange(min=0), metavar="N", help="Keep the newest N runs of each pipeline.")
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@add_json_option
def rm(run_ids: tuple[str, ...], older_than: float | None, keep_last: int | None, dry_run: bool, as_json: bool) -> None:
    """Remove runs with their artifacts, by ID or by age and number.

    Running runs are kept. Steps whose cached outputs are removed run again.
    """
    conditions = older_than is not None or keep_last is not None
    if bool(run_ids) == conditions:
        raise UserError("rm: expected either run IDs, or --older-than and --keep-last")
    if run_ids:
        chosen = [get_run(name) for name in dict.fromkeys(run_ids)]
    else:
        chosen = select_runs(list_runs(), older_than_days=older_than, keep_last=keep_last)
    for run in chosen:
        if not dry_run:
            remove_run(run)
        if not as_json:
            click.echo(f"{run.id}: {'would be removed' if dry_run else 'removed'}, {_format_size(run.bytes)}")
    if as_json:
        print_json({"removed": [] if dry_run else [run.id for run in chosen], "selected": [run.id for run in chosen]})
    elif not chosen:
        click.echo("No run fulfils the conditions.")


def _format_size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
