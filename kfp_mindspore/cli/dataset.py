"""`kfp-mindspore dataset`: load data into a dataset directory, and inspect one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kfp_mindspore import files
from kfp_mindspore.cli.command import StrictGroup
from kfp_mindspore.cli.output import PairType, add_json_option, print_json
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import STORAGES, TASKS, Dataset

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore dataset load data.csv data --target price")
def dataset() -> None:
    """Load data into a dataset directory, and inspect one."""


class _Names(click.ParamType[Any]):
    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names in a comma-separated list."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _add_names_option(name: str, *, help: str) -> Callable[[Command], Command]:
    """Add a name option, which may be repeated; passed as one list, None if it is not given."""

    def join(context: click.Context, parameter: click.Parameter, values: tuple[list[str], ...]) -> list[str] | None:
        return [name for names in values for name in names] if values else None

    return click.option(name, type=_Names(), multiple=True, callback=join, help=help)


class _Size(click.ParamType[Any]):
    name = "HEIGHTxWIDTH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return height and width."""
        parts = value.lower().split("x") if isinstance(value, str) else value
        if isinstance(value, str) and (len(parts) != 2 or not all(part.isdigit() and int(part) for part in parts)):
            return self.fail(f"must be HEIGHTxWIDTH, such as 32x32, got {value!r}", param, ctx)
        return tuple(map(int, parts))


@dataset.command(
    epilog="Examples: kfp-mindspore dataset load diabetes data; "
    "kfp-mindspore dataset load s3://bucket/sales.csv data --target price --split time:day --missing mean"
)
@click.argument("source")
@click.argument("directory", type=click.Path(path_type=Path))
@_add_names_option("--target", help="Fields of the target; repeatable. [default: target, label or class]")
@_add_names_option("--features", help="Fields of the features; repeatable. [default: all others]")
@click.option(
    "--input",
    "inputs",
    type=PairType(),
    multiple=True,
    metavar="INPUT=FIELD,…",
    help="An input of the network and its fields; repeatable. One field keeps its dtype, several (or one with a comma "
    "after it) are stacked as float32. [default: features]",
)
@click.option("--weight", default="", help="Field of the sample weights.")
@_add_names_option("--ids", help="Fields that identify a sample; repeatable.")
@click.option("--task", type=click.Choice(TASKS), help="Task. [default: guessed from the target]")
@click.option(
    "--split",
    default="",
    help="stratified, random, contiguous, time:FIELD, group:FIELD or column:FIELD. [default: stratified for a "
    "classification, contiguous for a language model, else random]",
)
@click.option("--validation", default="", help="Source of the validation split. [default: a fraction of SOURCE]")
@click.option("--test", default="", help="Source of the test split. [default: a fraction of SOURCE]")
@click.option("--validation-fraction", type=float, default=0.15, show_default=True, help="Fraction for validation.")
@click.option("--test-fraction", type=float, default=0.2, show_default=True, help="Fraction for the test.")
@click.option("--limit", type=int, default=0, help="Samples to keep of SOURCE, or of each split in it. [default: all]")
@click.option("--seed", type=int, default=42, show_default=True, help="Seed of the split.")
@click.option(
    "--preprocessing",
    default="",
    help="standardize, none, or a JSON list of steps, also as FILE.json. [default: standardize for tables]",
)
@click.option("--missing", default="refuse", show_default=True, help="refuse, mean, median, drop or a number.")
@click.option("--storage", type=click.Choice(STORAGES), default="npz", show_default=True, help="Form of the splits.")
@click.option("--format", "kind", default="", help="Format of SOURCE. [default: by its name]")
@click.option("--length", type=int, default=64, show_default=True, help="Characters of a window of a text.")
@click.option("--image-size", type=_Size(), help="Size of the images of a folder. [default: the most frequent one]")
@add_json_option
def load(
    source: str,
    directory: Path,
    target: list[str] | None,
    ids: list[str] | None,
    inputs: tuple[tuple[str, str], ...],
    task: str | None,
    validation: str,
    test: str,
    preprocessing: str,
    missing: str,
    kind: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Write SOURCE as a dataset directory with the splits train, validation and test.

    SOURCE is a named set (breast_cancer, diabetes, digits, fashion_mnist, iris, linnerud, movielens, new_testament,
    wine), or a path or URI (s3, gs, http) of a CSV, Parquet, JSON lines, NPZ, NPY, IDX, text or MindRecord file, or of
    a folder of images.
    """
    from kfp_mindspore.data import load_dataset
    from kfp_mindspore.data.options import join_sources, parse_missing, parse_preprocessing
    from kfp_mindspore.data.report import render_report

    if preprocessing.endswith(".json"):
        preprocessing = json.dumps(files.read_json(Path(preprocessing)))
    loaded = load_dataset(
        join_sources(source, validation, test),
        directory,
        target=target or (),
        ids=ids or (),
        inputs={name: _parse_fields(name, fields) for name, fields in inputs} or None,
        task=task or "",
        preprocessing=parse_preprocessing(preprocessing),
        missing=parse_missing(missing),
        format=kind,
        **options,
    )
    if as_json:
        print_json(_describe(loaded))
    else:
        click.echo(render_report(loaded))
        click.echo(f"written: {loaded.path}")


@dataset.command(epilog="Example: kfp-mindspore dataset inspect data")
@click.argument("directory", type=click.Path(path_type=Path))
@add_json_option
def inspect(directory: Path, as_json: bool) -> None:
    """Describe a dataset directory: task, columns, splits, preprocessing, findings and statistics."""
    from kfp_mindspore.data.report import render_report, render_statistics

    opened = Dataset.open(directory)
    if as_json:
        print_json(_describe(opened))
    else:
        click.echo(render_report(opened))
        click.echo(f"storage: {opened.storage}, digest {opened.digest}")
        for line in render_statistics(opened):
            click.echo(line)


def _parse_fields(name: str, text: str) -> str | list[str]:
    fields = [field.strip() for field in text.split(",") if field.strip()]
    if not fields:
        raise UserError(f"--input {name}: must name at least one field, as in --input {name}=FIELD")
    return fields if "," in text else fields[0]


def _describe(opened: Dataset) -> dict[str, Any]:
    return {**dataclasses.asdict(opened), "path": str(opened.path)}
