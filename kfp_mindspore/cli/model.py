"""`kfp-mindspore model`: export, import, inspect and verify model bundles, and predict with them."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kfp_mindspore import files
from kfp_mindspore.cli.image.options import add_registry_options
from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json, print_table
from kfp_mindspore.compression.options import CompressionOptions
from kfp_mindspore.errors import MissingExtraError, UserError, join_names
from kfp_mindspore.formats.bundle import (
    CAUSAL_KIND,
    DETECTOR_KIND,
    DUAL_KIND,
    EMBEDDING_KIND,
    MODEL_FILE,
    NETWORK_FILE,
    SEQ2SEQ_KIND,
    TRANSFORM_FILE,
    ModelBundle,
    Signature,
    TensorSpec,
)
from kfp_mindspore.formats.rows import RowLayout
from kfp_mindspore.mindir.devices import DeviceOptions
from kfp_mindspore.mindir.options import ExportOptions
from kfp_mindspore.outputs import check_apart
from kfp_mindspore.settings import LOG_LEVEL_VARIABLE

if TYPE_CHECKING:
    from kfp_mindspore.images import RegistryConfig

_LISTED = 20
_NETWORK, _FILES = ("network", "value"), ("file", "size", "sha256")
# Of the kinds of language models.
_ROUTES = {
    CAUSAL_KIND: "/openai/v1/chat/completions or /openai/v1/completions",
    EMBEDDING_KIND: "/openai/v1/embeddings",
    SEQ2SEQ_KIND: "/openai/v1/completions",
}


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore model verify out/model --outputs")
def model() -> None:
    """Export, compress, import, inspect and verify model bundles (MindIR), and predict with them."""


def _add_key_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--key-file", type=click.Path(path_type=Path), help=f"{text}. [env: MINDSPORE_MODEL_KEY]")


def _add_example_option(purpose: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--example",
        type=click.Path(path_type=Path),
        help=f"File with rows that {purpose}: .json, .jsonl, .csv, .npz or .npy.",
    )


class _Batch(click.ParamType[Any]):
    name = "free|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return `free`, or the row count as an integer."""
        if value == "free" or isinstance(value, int):
            return value
        if str(value).isdigit() and int(value) > 0:
            return int(value)
        return self.fail(f"must be 'free' or a number of at least 1, got {value!r}", param, ctx)


@model.command(
    epilog="Example: kfp-mindspore model export out/checkpoint --dataset data/digits -o out/model",
)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OutputPath(), help="Bundle directory to write.")
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Dataset directory; samples of its test split verify the graph.",
)
@_add_example_option("verify the graph, instead of a dataset")
@dataclass_options(
    ExportOptions,
    without=("tolerance",),
    names={"sample_count": "--samples"},
    types={"batch": _Batch(), **dict.fromkeys(("dimensions", "strategy"), click.Path(path_type=Path))},
)
@_add_key_option("File with the key to encrypt the model (AES-GCM)")
@add_json_option
def export(
    checkpoint: Path,
    output: Path,
    dataset: Path | None,
    example: Path | None,
    options: ExportOptions,
    key_file: Path | None,
    as_json: bool,
) -> None:
    """Export the network in CHECKPOINT as a model bundle.

    CHECKPOINT is a directory by fit, or the .ckpt or .safetensors file of any script, or its directory; these need
    --network. A sharded checkpoint, with the slices of each rank in rank_N/, is merged by its strategy files.

    The exported graph is reloaded and compared with the network; the bundle is written only if the outputs agree. It
    is encrypted if a key is given by file or in MINDSPORE_MODEL_KEY. --dimensions takes a JSON file.
    """
    # MindSpore logs call stacks as errors for a network that does not compile; its message is in the exception.
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "4")
    from kfp_mindspore.mindir import export_mindir

    if dataset is not None and example is not None:
        raise UserError("--dataset, --example: give one of them")
    if options.dimensions is not None:
        options = dataclasses.replace(options, dimensions=_read_object(Path(str(options.dimensions))))
    bundle = export_mindir(
        checkpoint,
        output,
        options,
        dataset_dir=dataset,
        samples=example,
        key=_read_key(key_file),
    )
    if as_json:
        print_json(_describe(bundle))
    else:
        verified, encryption = bundle.signature.verified, bundle.signature.encryption
        state = f"exported, encrypted ({encryption})" if encryption else "exported"
        click.echo(
            f"{bundle.path}: {state}; {verified['samples']} samples differ by at most {verified['max_abs_diff']:g}"
        )


@model.command(
    epilog="Example: kfp-mindspore model compress out/checkpoint --dataset data/digits -o out/small --pruned 0.5",
)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OutputPath(), help="Directory to write.")
@click.option("--dataset", required=True, type=click.Path(path_type=Path), help="Dataset directory of the training.")
@click.option("--augment", help="module:function of the training's augmentation, for fine-tuning.")
@dataclass_options(CompressionOptions)
@add_json_option
def compress(
    checkpoint: Path, output: Path, dataset: Path, augment: str | None, options: CompressionOptions, as_json: bool
) -> None:
    """Cut channels and attention heads from the network in CHECKPOINT, and fine-tune it.

    OUTPUT gets a checkpoint, which `model export` takes as any other, and a report. Exit code 3 if the metric loses
    more than allowed in each round; the best round is written.
    """
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "4")
    from kfp_mindspore import compression
    from kfp_mindspore.compression.result import Round

    def print_round(found: Round) -> None:
        state = "passed" if found.passed else "gate not met"
        click.echo(f"{found.pruned:.1%} of the {options.target} cut: {found.value:.4f}, {state}")

    function = None
    if augment is not None:
        from kfp_mindspore.mindir.parameters.network import import_callable

        function = import_callable(augment, "augment")
    result = compression.compress(
        checkpoint, dataset, output, options, augment=function, on_round=None if as_json else print_round
    )
    if as_json:
        print_json(result.to_dict())
        return
    before, after = result.before, result.after
    click.echo(
        f"{result.checkpoint}: {before.parameters:,} → {after.parameters:,} parameters, batch 32 "
        f"{result.speedups[32].describe()}; {result.metric} {result.value_before:.4f} → "
        f"{result.value:.4f} on {result.split}"
    )
    if result.left:
        click.echo(f"left: {join_names([f'{left.layer} ({left.reason})' for left in result.left])}")
    click.echo(f"report: {result.report}")


@model.command(name="import", epilog="Example: kfp-mindspore model import net.mindir --example rows.json -o out/model")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=OutputPath(), help="Bundle directory to write.")
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="Dataset directory; samples of its test split are kept with their outputs and targets, and its statistics.",
)
@_add_example_option("are kept with their outputs; default random ones")
@dataclass_options(
    ExportOptions,
    only=("sample_count", "metadata", "statistics", "device", "device_id"),
    names={"sample_count": "--samples"},
)
@_add_key_option("File with the key of an encrypted model, which stays encrypted")
@add_json_option
def import_(
    file: Path,
    output: Path,
    dataset: Path | None,
    example: Path | None,
    options: ExportOptions,
    key_file: Path | None,
    as_json: bool,
) -> None:
    """Make FILE, a MindIR that another program exported, a model bundle.

    Inputs and outputs, their free dimensions and the ranges of indices are the graph's. A graph that keeps state, draws
    random numbers or has custom operators is refused.
    """
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "4")
    from kfp_mindspore.mindir.export.importer import import_mindir

    if dataset is not None and example is not None:
        raise UserError("--dataset, --example: give one of them")
    bundle = import_mindir(file, output, options, dataset_dir=dataset, samples=example, key=_read_key(key_file))
    if as_json:
        print_json(_describe(bundle))
        return
    verified = bundle.signature.verified
    click.echo(f"{bundle.path}: imported; outputs of {verified['samples']} {verified['dataset']} rows recorded\n")
    _print_specs(bundle.signature.inputs, bundle.signature.outputs)


@model.command(epilog="Example: kfp-mindspore model inspect out/model")
@click.argument("path", type=click.Path(path_type=Path))
@_add_key_option("File with the key of an encrypted model, to inspect its graph (loads MindSpore)")
@add_json_option
def inspect(path: Path, key_file: Path | None, as_json: bool) -> None:
    """Describe a bundle or a .mindir file without loading MindSpore.

    Operators and weights of the graph need MindSpore to be installed; a bundle's signature does not.
    """
    from kfp_mindspore.mindir.graph.metadata import inspect_mindir

    key = _read_key(key_file)
    bundle = None if path.is_file() else ModelBundle.open(path)
    # Without the key, an encrypted bundle is described by its signature.
    closed = bundle is not None and bool(bundle.signature.encryption) and key is None
    info = None
    reason = f"encrypted ({bundle.signature.encryption}), set --key-file" if bundle and closed else ""
    is_language = bundle is not None and bundle.signature.is_language_model
    if not closed and not is_language:
        try:
            info = inspect_mindir(path if bundle is None else bundle.mindir, key=key)
        except MissingExtraError as error:
            if bundle is None:
                raise
            reason = f"not read, {error.message}. {error.hint}"
    if as_json:
        described = {} if bundle is None else {**_describe(bundle), **_describe_serving(bundle)}
        if is_language and bundle is not None:
            described["network"] = _read_network(bundle)
        print_json({**described, "mindir": None if info is None else info.to_dict()})
        return
    if is_language and bundle is not None:
        click.echo(f"{path}: {_name_kind(bundle.signature)}\n")
        network = _read_network(bundle).items()
        print_table(
            [{"network": key, "value": value} for key, value in network if not isinstance(value, dict)], _NETWORK
        )
        click.echo("")
        print_table([{"file": name, **entry} for name, entry in bundle.signature.files.items()], _FILES)
    elif info is None and bundle is not None:
        size = bundle.signature.files[MODEL_FILE]["size"]
        click.echo(f"{bundle.mindir}: {size} bytes")
        click.echo(f"weights and operators: {reason}\n")
    elif info is not None:
        click.echo(f"{info.path}: {info.size} bytes, {info.producer} {info.mindspore_version}")
        click.echo(f"{info.parameters} weights with {info.parameter_values} values")
        click.echo("operators: " + ", ".join(f"{count} {name}" for name, count in info.operators.items()) + "\n")
        if bundle is None:
            _print_specs(info.inputs, info.outputs)
    if bundle is not None:
        _print_signature(bundle)


@model.command(epilog="Example: kfp-mindspore model verify out/model --outputs")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--outputs", is_flag=True, help="Also run the graph and verify its outputs.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="Tolerance. [default: 1e-5; on a GPU or NPU by dtype]",
)
@_add_key_option("File with the key of an encrypted model, for --outputs")
@dataclass_options(DeviceOptions, into="place")
@add_json_option
def verify(
    path: Path, outputs: bool, tolerance: float | None, key_file: Path | None, place: DeviceOptions, as_json: bool
) -> None:
    """Verify the digests of a bundle and, with --outputs, its graph's outputs."""
    from kfp_mindspore.mindir import verify_bundle

    result = verify_bundle(
        path,
        outputs=outputs,
        tolerance=tolerance,
        key=_read_key(key_file),
        device=place.device,
        device_id=place.device_id,
    )
    if as_json:
        print_json(result.to_dict())
        return
    message = f"{path}: {', '.join(result.files)} and signature.json match their digests"
    if outputs:
        message += f"; outputs of {result.samples} samples differ by at most {result.max_abs_diff:g}"
    click.echo(message)


@model.command(epilog="Example: kfp-mindspore model push out/model registry.example.com/team/digits:1")
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("destination", metavar="REGISTRY/NAME:TAG")
@click.option(
    "--base", default="", help="Image with a shell, below the files, for oci:// by a sidecar. [default: none]"
)
@click.option("--platform", default="linux/amd64", show_default=True, help="Platform of the nodes.")
@add_registry_options
@add_json_option
def push(path: Path, destination: str, base: str, platform: str, registry: RegistryConfig, as_json: bool) -> None:
    """Push a bundle to a registry as an image, one layer below /models, and print its URI for a service.

    The bundle's digests are verified first. Equal bundles have an equal digest.
    """
    from kfp_mindspore.cli.image.progress import BuildDisplay
    from kfp_mindspore.images.model_image import push_model
    from kfp_mindspore.mindir import verify_bundle

    verify_bundle(path)
    with BuildDisplay() as display:
        name = push_model(path, destination, registry, base=base, platform=platform, on_progress=display)
    # A sidecar needs the base's shell; without one KServe mounts the image.
    uri = f"{'oci' if base else 'oci+native'}://{name}"
    if as_json:
        print_json({"image": name, "model": uri})
        return
    click.echo(uri)


@model.command(
    epilog="""\b
Examples:
  kfp-mindspore model predict out/model sales.csv -o predictions.csv
  kfp-mindspore model predict out/model rows.csv --output label
  kfp-mindspore model predict out/model rows.json --json
  kfp-mindspore model predict detector street.jpg --threshold 0.8 -o boxes.png"""
)
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--write",
    "written",
    metavar="FILE",
    type=OutputPath(),
    help="CSV or Parquet to write; PNG with a detector's boxes.",
)
@click.option("--output", "names", metavar="NAME", multiple=True, help="Output to print; repeatable, default all.")
@click.option(
    "--delimiter", default="", help="Character between two cells of a CSV file, or tab.  [default: found in FILE]"
)
@click.option(
    "--threshold", type=click.FloatRange(0, 1), help="Least score of a detector's boxes.  [default: the bundle's]"
)
@click.option("--allow-model-code", is_flag=True, help="Execute the bundle's transform.py, code of the model's author.")
@_add_key_option("File with the key of an encrypted model")
@dataclass_options(DeviceOptions, into="place")
@add_json_option
def predict(
    path: Path,
    file: Path,
    written: Path | None,
    names: tuple[str, ...],
    delimiter: str,
    threshold: float | None,
    allow_model_code: bool,
    key_file: Path | None,
    place: DeviceOptions,
    as_json: bool,
) -> None:
    """Predict the rows of FILE with the bundle DIR on this machine, without a server.

    FILE is .json, .jsonl, .csv, .npz or .npy with raw rows, as in requests to the server, or the table that the model
    was trained with: CSV, Parquet or JSON lines. Its target column is printed beside the outputs, other columns are
    ignored. For a model of images, FILE may be a PNG or JPEG. Each output row is printed as a line of JSON; with --json
    all of them in one object. A detector's rows are lists of label, score and box: left, top, right, bottom in pixels.
    """
    from kfp_mindspore.data.rows import PICTURES, check_written, read_rows, write_predictions
    from kfp_mindspore.inference.predict import to_json
    from kfp_mindspore.mindir.devices import use_device
    from kfp_mindspore.mindir.graph.encryption import require_key
    from kfp_mindspore.mindir.graph.runner import ModelRunner
    from kfp_mindspore.vision.detections import check_drawn, list_detections, write_detections

    if written is not None:
        check_apart(written, [path, file, key_file])
    bundle = ModelBundle.open(path)
    is_detector = bundle.signature.kind == DETECTOR_KIND
    if threshold is not None and not is_detector:
        raise UserError(f"--threshold: is for detectors, {path} is none")
    if written is not None:
        (check_drawn if is_detector else check_written)(written, [path, file, key_file])
        if is_detector and not file.name.lower().endswith(PICTURES):
            raise UserError(f"-o: boxes are drawn into a PNG or JPEG image, FILE is {file}")
    key = require_key(bundle, _read_key(key_file))
    signature: Signature = bundle.signature
    # A dual encoder's rows are images.
    if signature.is_language_model and signature.kind != DUAL_KIND:
        if route := _ROUTES.get(signature.kind):
            hint = f"Serve it, and send requests to {route}: kfp-mindspore serve {path}"
        else:
            hint = f"Serve both stages, and send requests to the first one's {_ROUTES[CAUSAL_KIND]}."
        raise UserError(f"{path}: {_name_kind(signature)}, which answers no rows", hint=hint)
    use_device(place.device, place.device_id)
    with ModelRunner(bundle, key=key, allow_code=allow_model_code) as runner:
        found = [spec.name for spec in runner.outputs]
        if unknown := [name for name in names if name not in found]:
            raise UserError(f"--output: must be one of {', '.join(found)}, got {unknown[0]!r}")
        rows = read_rows(file, runner.inputs, signature.rows, delimiter=delimiter)
        runner.adapt({} if threshold is None else {"threshold": threshold})
        outputs = runner.predict(rows.inputs)
    columns: dict[str, Any] = {name: _decode(to_json(outputs[name])) for name in names or outputs}
    if is_detector:
        detections = list_detections(outputs)
        columns = columns if names else {"detections": detections}
        if written is not None:
            write_detections(written, file.read_bytes(), detections[0])
            click.echo(f"{written}: {len(detections[0])} boxes", err=True)
            written = None
    columns = rows.scatter(columns)
    for name, values in rows.target.items():
        columns[name if name not in found else f"target_{name}"] = values
    if written is not None:
        write_predictions(written, columns, signature.labels)
        click.echo(f"{written}: {len(next(iter(columns.values())))} rows")
    elif as_json:
        print_json({"outputs": columns})
    else:
        for row in zip(*columns.values(), strict=True):
            click.echo(json.dumps(dict(zip(columns, row, strict=True))))


def _decode(value: Any) -> Any:
    """Return JSON values with base 64 as text where it is UTF-8."""
    if isinstance(value, list):
        return [_decode(entry) for entry in value]
    if isinstance(value, dict):
        with contextlib.suppress(UnicodeDecodeError):
            return base64.b64decode(value["b64"]).decode()
    return value


def _read_key(key_file: Path | None) -> bytes | None:
    from kfp_mindspore.mindir.graph.encryption import read_model_key

    return read_model_key(key_file, os.environ)


def _describe(bundle: ModelBundle) -> dict[str, Any]:
    signature: Signature = bundle.signature
    return {"path": str(bundle.path), **signature.to_dict()}


def _name_kind(signature: Signature) -> str:
    if signature.kind == DUAL_KIND:
        return "a dual encoder of images and texts"
    return f"a language model of the kind {signature.kind}"


def _read_network(bundle: ModelBundle) -> dict[str, Any]:
    """Return a language model's configuration; empty for a bundle without one."""
    file = bundle.path / NETWORK_FILE
    network: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return network


def _describe_serving(bundle: ModelBundle) -> dict[str, Any]:
    signature: Signature = bundle.signature
    return {
        "task": signature.task,
        "labels": list(signature.labels),
        "preprocessing": bundle.read_preprocessing(),
        "rows": None if (rows := signature.rows) is None else rows.to_dict(),
        "statistics": bundle.read_statistics(),
    }


def _print_signature(bundle: ModelBundle) -> None:
    from kfp_mindspore.data.report import render_labels, render_steps

    signature: Signature = bundle.signature
    _print_specs(signature.inputs, signature.outputs)
    if signature.task:
        click.echo(f"\ntask: {signature.task}")
    if signature.labels:
        click.echo(render_labels(signature.labels))
    if declaration := bundle.read_preprocessing():
        for spec in declaration.get("inputs", ()):
            click.echo(f"request {spec['name']}: {spec['dtype']} ({', '.join(map(str, spec['shape']))})")
        click.echo(f"preprocessing: {render_steps(declaration.get('pre', ()))}")
        click.echo(f"postprocessing: {render_steps(declaration.get('post', ()))}")
    if rows := signature.rows:
        _print_rows(rows, declaration.get("pre", ()))
    if TRANSFORM_FILE in signature.files:
        click.echo(f"\n{TRANSFORM_FILE}: changes requests and responses; served only with --allow_model_code true")
    if (statistics := bundle.read_statistics()).get("columns"):
        from kfp_mindspore.mindir.monitoring.reference import list_summaries

        click.echo(f"\nstatistics of {statistics['rows']} training rows:")
        print_table(list_summaries(statistics), ["column", "measure", "values", "missing", "statistics"])
    metadata = {name: text for name, text in signature.metadata.items() if name not in ("task", "labels", "rows")}
    for title, table in (("verified", signature.verified), ("metadata", metadata)):
        if table:
            click.echo(f"\n{title}:")
            for name, value in table.items():
                click.echo(f"  {name}: {value}")


def _print_rows(rows: RowLayout, steps: Sequence[Mapping[str, Any]]) -> None:
    """Print the columns by which rows are accepted, and the features that they become."""
    click.echo("")
    print_table(rows.describe_columns(), ["column", "dtype", "input"])
    for name, features in rows.list_features(steps).items():
        listed = ", ".join(features[:_LISTED]) + (", …" if len(features) > _LISTED else "")
        click.echo(f"features of {name}: {len(features)} ({listed})")
    ignored = ", ".join((*rows.target, *rows.others)) or "none"
    click.echo(f"missing values: {rows.missing}; other columns: {rows.extra}; ignored: {ignored}")


def _print_specs(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
    rows = [
        {"kind": kind, "name": spec.name, "dtype": spec.dtype, "shape": f"({', '.join(map(str, spec.shape))})"}
        for kind, specs in (("input", inputs), ("output", outputs))
        for spec in specs
    ]
    print_table(rows, ["kind", "name", "dtype", "shape"])


def _read_object(file: Path) -> dict[str, Any]:
    value = files.read_json(file)
    if not isinstance(value, dict):
        raise UserError(f"{file}: must contain a JSON object of dimensions by name, got {type(value).__name__}")
    return value
