"""`kfp-mindspore dataset`: load data into a dataset directory, and inspect one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from kfp_mindspore import files
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, PairType, add_json_option, print_json
from kfp_mindspore.data.options import DatasetOptions
from kfp_mindspore.errors import UserError
from kfp_mindspore.formats.dataset import Dataset


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore dataset load data.csv data --target price")
def dataset() -> None:
    """Load data into a dataset directory, and inspect one."""


class _Names(click.ParamType[Any]):
    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names in a comma-separated list."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


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
@click.argument("directory", type=OutputPath())
@click.option(
    "--input",
    "inputs",
    type=PairType(),
    multiple=True,
    metavar="INPUT=FIELD,…",
    help="An input of the network and its fields; repeatable. One field keeps its dtype, several (or one with a comma "
    "after it) are stacked as float32. [default: features]",
)
@dataclass_options(
    DatasetOptions,
    without=("inputs",),
    types={**dict.fromkeys(("target", "features", "ids"), _Names()), "image_size": _Size()},
    once=("image_size",),
)
@add_json_option
def load(
    source: str,
    directory: Path,
    inputs: tuple[tuple[str, str], ...],
    options: DatasetOptions,
    as_json: bool,
) -> None:
    """Write SOURCE as a dataset directory with the splits train, validation and test.

    SOURCE is a named set (breast_cancer, diabetes, digits, fashion_mnist, iris, linnerud, movielens, new_testament,
    reviews, scenes, shapes, waves, wine), or a path or URI (s3, gs, http) of a CSV, Parquet, JSON lines, NPZ, NPY, IDX,
    text or MindRecord file, or of an image folder with a folder for each class, or with COCO, YOLO or VOC boxes.
    --preprocessing takes a FILE.json with the list too.
    """
    from kfp_mindspore.data.options import parse_texts
    from kfp_mindspore.data.report import render_report
    from kfp_mindspore.steps.data import load_by_engine

    changes: dict[str, Any] = {"inputs": {name: _parse_fields(name, fields) for name, fields in inputs}}
    if str(options.preprocessing).endswith(".json"):
        changes["preprocessing"] = json.dumps(files.read_json(Path(str(options.preprocessing))))
    loaded = load_by_engine(source, directory, parse_texts(dataclasses.replace(options, **changes)))
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
