"""Other job kinds: `kfp-mindspore job convert`, and `job submit --kind`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kfp_mindspore.cli.job.document import read_text
from kfp_mindspore.cli.job.report import print_warning
from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json, print_json_list
from kfp_mindspore.outputs import check_output_file, has_mark

if TYPE_CHECKING:
    from kfp_mindspore.msjob import MSJob, MSJobClient

# From kfp_mindspore.msjob.kinds, whose import would delay every command.
KINDS = ("MPIJob", "TrainJob", "AscendJob", "volcano", "RayJob", "legacy", "first-generation")
# Texts of which each job's manifest has one.
_MARKS = ("kind: MSJob", "kind: MPIJob", "kind: TrainJob", "kind: AscendJob", "kind: RayJob", "batch.volcano.sh/")


@click.command(
    cls=StrictCommand,
    epilog="Examples: kfp-mindspore job convert old.yaml --output job.yaml; "
    "kfp-mindspore job convert job.yaml --to MPIJob | kubectl apply -f -",
)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--to", type=click.Choice([*KINDS], case_sensitive=False), help="Kind of the result. [default: MSJob]")
@click.option("-o", "--output", type=OutputPath(), help="Write it there. [default: standard output]")
@add_json_option
def convert(file: Path, to: str | None, output: Path | None, as_json: bool) -> None:
    """Convert the jobs in FILE, or - for standard input, to MSJobs, or MSJobs to another kind.

    FILE has MSJobs of any generation, MPIJobs, TrainJobs with their runtimes, AscendJobs or Volcano Jobs; other objects
    in it are kept. Changes and their reasons are listed on standard error.
    """
    import yaml

    from kfp_mindspore.files import write_text
    from kfp_mindspore.msjob.convert import convert_file

    name = "standard input" if str(file) == "-" else str(file)
    if output is not None:
        check_output_file(output, "a job's manifest", lambda found: has_mark(found, *_MARKS), [file])
    text = read_text(file)
    conversion = convert_file(text, source=name, to=to)
    is_unchanged = to is None and not conversion.changes
    # Comments and key order survive only without changes.
    result = text if is_unchanged else yaml.safe_dump_all(conversion.documents, sort_keys=False)
    if output is not None:
        write_text(output, result)
    if as_json:
        changes = [vars(change) for change in conversion.changes]
        print_json({"job": conversion.jobs[0].to_dict(), "documents": conversion.documents, "changes": changes})
        return
    for change in conversion.changes:
        click.echo(str(change), err=True)
    if is_unchanged:
        click.echo(f"{name}: is of the current generation, unchanged", err=True)
    else:
        click.echo(f"{name}: comments and the order of keys are not kept", err=True)
    if output is None:
        click.echo(result, nl=False)
    else:
        click.echo(f"{output} written", err=True)


def submit_as(client: MSJobClient, document: MSJob, kind: str, *, dry_run: bool, as_json: bool) -> None:
    """Submit a job as another kind, and print its objects."""
    import yaml

    from kfp_mindspore.msjob.backends.foreign import create_as_kind

    export = create_as_kind(client.backend, document, kind, dry_run=dry_run)
    if not dry_run and (blocked := client.backend.explain_queue(document, kind)):
        print_warning(blocked)
    stored = export.manifests
    for change in () if as_json else export.changes:
        click.echo(str(change), err=True)
    if as_json:
        print_json_list(stored)
    elif dry_run:
        click.echo(yaml.safe_dump_all(stored, sort_keys=False), nl=False)
    else:
        for item in stored:
            name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
            click.echo(f"{item['kind']} {name} created" + (f" in namespace {namespace}" if namespace else ""))
