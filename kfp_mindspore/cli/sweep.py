"""`kfp-mindspore sweep`: many trials of one training, and the best of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore import files
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import (
    OutputPath,
    PairType,
    add_json_option,
    dump_manifest,
    print_json,
    print_table,
)
from kfp_mindspore.cli.shared.target import BackendOptions, add_target_options
from kfp_mindspore.errors import UserError
from kfp_mindspore.mindir.parameters.network import import_callable
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.outputs import check_output_file, check_page, has_mark
from kfp_mindspore.settings import IMAGE_VARIABLE
from kfp_mindspore.sweeps.options import ENGINES, MSJOB, SweepOptions
from kfp_mindspore.sweeps.space import read_declaration

if TYPE_CHECKING:
    from kfp_mindspore.sweeps.study import SweepResult, TrialResult

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
add_directory = click.argument("directory", type=_DIRECTORY)


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore sweep show sweeps/lenet")
def sweep() -> None:
    """Run many trials of one training, each an MSJob, and show the best."""


def add_training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the trials' training options."""
    for option in reversed(
        (
            click.option("--network", help="module:factory of the network that kfp_mindspore.training trains."),
            click.option("--script", type=click.Path(), help="Training script, instead of a network."),
            click.option("--dataset", help="Dataset directory; on a cluster the pods' own."),
            click.option("--output", default="", help="URI or directory in the pods for outputs of jobs on a cluster."),
            click.option(
                "--space",
                required=True,
                help="YAML file, parameter: [choices], or {low, high, step, log, when, default}; "
                "or module:Class of a dataclass.",
            ),
            click.option(
                "-p",
                "--parameter",
                "fixed",
                type=PairType(),
                multiple=True,
                help="Parameter of all trials; repeatable.",
            ),
            click.option(
                "--workers",
                type=click.IntRange(min=1),
                default=1,
                show_default=True,
                help="Workers of each trial.",
            ),
            dataclass_options(SweepOptions),
        )
    ):
        command = option(command)
    return command


@sweep.command(
    epilog="Example: kfp-mindspore sweep run sweeps/lenet --script train.py --dataset data --space space.yaml "
    "--objective accuracy --trials 16 --parallel 2"
)
@click.argument("directory", type=OutputPath())
@add_training_options
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=MSJOB,
    show_default=True,
    help="What runs the trials: MSJobs, or Ray Tune with one process each.",
)
@dataclass_options(JobOptions, only=("queue", "queue_priority"), into="job_options")
@add_target_options
@add_json_option
def run(
    directory: Path,
    network: str | None,
    script: str | None,
    dataset: str | None,
    output: str,
    space: str,
    fixed: tuple[tuple[str, str], ...],
    workers: int,
    options: SweepOptions,
    engine: str,
    job_options: JobOptions,
    target: BackendOptions,
    as_json: bool,
) -> None:
    """Run a sweep in DIRECTORY, or go on with the one that is there."""
    from kfp_mindspore.sweeps.engine import sweep as run_sweep

    path = None if script is None else str(Path(script).absolute())
    queue = {"queue_name": job_options.queue, "queue_priority": job_options.queue_priority}
    result = run_sweep(
        {
            **build_template(network, path, dataset, fixed, workers),
            **{name: value for name, value in queue.items() if value},
        },
        read_space(space),
        options,
        directory=directory,
        output=output,
        client=target.make_client() if engine == MSJOB else None,
        on_trial=None if as_json else print_trial,
        engine=engine,
    )
    print_best(result, as_json=as_json)


@sweep.command(
    epilog="Example: kfp-mindspore sweep export --katib --name lenet --network my_network:LeNet5 "
    "--dataset /data/digits --claim digits=/data --space space.yaml --objective accuracy -o experiment.yaml"
)
@click.option("--katib", is_flag=True, required=True, help="As an Experiment of Katib 0.19.")
@click.option("--name", required=True, help="Name of the Experiment.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Its namespace.")
@click.option("--image", envvar=IMAGE_VARIABLE, default="", help="The trials' image.")
@click.option(
    "--claim",
    "claims",
    type=PairType(has_unique_keys=False),
    multiple=True,
    help="A PersistentVolumeClaim and its mount path in the workers, such as digits=/data; repeatable.",
)
@add_training_options
@click.option("-o", "--to", type=OutputPath(), help="File to write. [default: print it]")
def export(
    katib: bool,
    name: str,
    namespace: str,
    image: str,
    claims: tuple[tuple[str, str], ...],
    network: str | None,
    script: str | None,
    dataset: str | None,
    output: str,
    space: str,
    fixed: tuple[tuple[str, str], ...],
    workers: int,
    options: SweepOptions,
    to: Path | None,
) -> None:
    """Write the sweep as a manifest for another engine, whose trials are MSJobs."""
    from kfp_mindspore.sweeps.katib import build_katib_experiment

    if to is not None:
        check_output_file(
            to, "an Experiment of Katib", lambda file: has_mark(file, "kind: Experiment"), [script, dataset]
        )
    experiment = build_katib_experiment(
        name,
        build_template(network, script, dataset, fixed, workers),
        read_space(space),
        namespace=namespace,
        output=output,
        image=image,
        claims=claims,
        **vars(options),
    )
    if options.pruner not in ("median", "none"):
        click.echo(
            f"Katib has no pruner {options.pruner}: its trials run to their ends (median is medianstop)", err=True
        )
    if to is None:
        click.echo(dump_manifest(experiment), nl=False)
    else:
        files.write_text(to, dump_manifest(experiment))
        click.echo(to)


@sweep.command(epilog="Example: kfp-mindspore sweep resume sweeps/lenet")
@add_directory
@add_target_options
@add_json_option
def resume(directory: Path, target: BackendOptions, as_json: bool) -> None:
    """Go on with an interrupted or killed sweep."""
    from kfp_mindspore import sweeps

    client = target.make_client()
    result = sweeps.resume_sweep(directory, client=client, on_trial=None if as_json else print_trial)
    print_best(result, as_json=as_json)


@sweep.command(epilog="Example: kfp-mindspore sweep show sweeps/lenet")
@add_directory
@add_json_option
def show(directory: Path, as_json: bool) -> None:
    """List the trials of a sweep."""
    from kfp_mindspore.sweeps.report import describe_parameters
    from kfp_mindspore.sweeps.study import read_sweep

    result = read_sweep(directory)
    if as_json:
        print_json({"objective": result.objective, "trials": [dataclasses.asdict(trial) for trial in result.trials]})
        return
    objectives = list(result.directions)
    front = {trial.number for trial in result.front} if len(objectives) > 1 else set()
    rows = [
        {
            "trial": f"{trial.number}*" if trial.number in front else trial.number,
            "state": trial.state,
            result.objective: "" if trial.value is None else f"{trial.value:.4g}",
            **{name: f"{trial.values[name]:.4g}" for name in objectives[1:] if name in trial.values},
            "spread": "" if trial.spread is None else f"{trial.spread:.2g}",
            "epochs": trial.epochs,
            "seconds": trial.seconds,
            "parameters": describe_parameters(trial.parameters),
            "reason": trial.reason.partition("\n")[0],
        }
        for trial in result.trials
    ]
    spread = ["spread"] if any(trial.spread is not None for trial in result.trials) else []
    print_table(rows, ["trial", "state", *objectives, *spread, "epochs", "seconds", "parameters", "reason"])
    if front:
        click.echo("* no trial surpasses it in all objectives")


@sweep.command(epilog="Example: kfp-mindspore sweep best sweeps/lenet --json")
@add_directory
@add_json_option
def best(directory: Path, as_json: bool) -> None:
    """Show the best trial of a sweep: its parameters and checkpoint."""
    from kfp_mindspore.sweeps.study import read_sweep

    print_best(read_sweep(directory), as_json=as_json)


@sweep.command(epilog="Example: kfp-mindspore sweep report sweeps/lenet -o sweep.html")
@add_directory
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    help="Page to write. [default: sweep.html in DIRECTORY]",
)
def report(directory: Path, output: Path | None) -> None:
    """Write a page with the trials, their parameters and learning curves."""
    from kfp_mindspore.sweeps.report import render_report
    from kfp_mindspore.sweeps.study import read_sweep

    # Its own page is the one file that the sweep's directory may get.
    check_page(output or directory / "sweep.html", [] if output is None else [directory])
    output = output or directory / "sweep.html"
    files.write_text(output, render_report(read_sweep(directory)))
    click.echo(output)


def build_template(
    network: str | None,
    script: str | None,
    dataset: str | None,
    fixed: tuple[tuple[str, str], ...],
    workers: int,
) -> dict[str, Any]:
    """Return `MSJobClient.train` arguments from the trials' training options."""
    template = {
        "network": network,
        "script": script,
        "dataset": dataset,
        "trainer_parameters": dict(fixed),
        "num_workers": workers,
    }
    return {name: value for name, value in template.items() if value}


def read_space(space: str) -> dict[str, Any]:
    """Read a YAML file with a space, or the dataclass `module:Class`; modules in the working directory are importable.

    Raises:
        UserError: There is no such file or class, it is no YAML, or no mapping.
    """
    from kfp_mindspore.sweeps.space import parse_space

    path = Path(space)
    if ":" in space and not path.exists():
        return read_declaration(import_callable(space, "space"))
    if not path.is_file():
        raise UserError(f"{path}: no such file", hint="--space is a YAML file, or module:Class of a dataclass.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text in UTF-8") from error
    return parse_space(text, str(path))


def print_trial(trial: TrialResult) -> None:
    """Print a trial that has ended."""
    from kfp_mindspore import sweeps

    click.echo(sweeps.describe_trial(trial))


def print_best(result: SweepResult, *, as_json: bool) -> None:
    """Print a sweep's best trial."""
    from kfp_mindspore.sweeps.report import describe_parameters

    found = result.best
    if as_json:
        print_json(
            {
                "objective": result.objective,
                **dataclasses.asdict(found),
                "checkpoint": result.get_checkpoint(found),
                "front": [trial.number for trial in result.front],
            }
        )
        return
    # Of several objectives no single trial is the best.
    for trial in result.front if len(result.directions) > 1 else [found]:
        spread = {} if trial.spread is None else {result.objective: f" ± {trial.spread:.2g}"}
        values = ", ".join(f"{name} {value:.4g}{spread.get(name, '')}" for name, value in trial.values.items())
        click.echo(f"best: trial {trial.number}, {values}, {describe_parameters(trial.parameters)}")
        checkpoint = result.get_checkpoint(trial)
        click.echo(f"checkpoint: {checkpoint or f'none, its training has written no {trial.output}/checkpoint'}")
