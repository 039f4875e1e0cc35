"""`kfp-mindspore vision`: models of images, and of images with texts."""

from __future__ import annotations

from pathlib import Path

import click

from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json
from kfp_mindspore.files import write_text
from kfp_mindspore.outputs import check_directory, check_page
from kfp_mindspore.vision.options import ContrastiveOptions

_OUTPUT = click.option(
    "-o", "--output", required=True, type=OutputPath(), help="Bundle directory; replaced when it exists."
)


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore vision import ./clip-vit-base-patch32 -o clip")
def vision() -> None:
    """Import, train and use models of images and words."""


@vision.command("import", epilog="Example: kfp-mindspore vision import ./clip-vit-base-patch32 -o clip")
@click.argument("source")
@_OUTPUT
@add_json_option
def import_command(source: str, output: Path, as_json: bool) -> None:
    """Write the model SOURCE as a bundle that `serve` serves.

    SOURCE is the path or URI of a Hugging Face directory with a CLIPModel, SiglipModel (also SigLIP 2 with a fixed
    resolution), ViTForImageClassification, Dinov2Model or Dinov2ForImageClassification.
    """
    from kfp_mindspore.vision.bundle import import_source

    _report(output, import_source(source, output), as_json=as_json)


@vision.command(epilog='Example: kfp-mindspore vision classes clip --labels "cat,dog" -o cats-and-dogs')
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--labels", required=True, help="Class names, separated by commas.")
@click.option("--template", default="a photo of a {}", show_default=True, help="A class's text; {} is its name.")
@_OUTPUT
@add_json_option
def classes(model: Path, labels: str, template: str, output: Path, as_json: bool) -> None:
    """Write an image classifier with the classes that you name, from the dual encoder MODEL.

    MODEL is a bundle by `vision import` of a CLIPModel or SiglipModel. The classifier is a bundle as any other.
    """
    from kfp_mindspore.vision.bundle import build_classifier

    _report(output, build_classifier(model, labels.split(","), template, output), as_json=as_json)


@vision.command(epilog="Example: kfp-mindspore vision finetune minilm-bundle captions.csv -o pictures --epochs 30")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("data")
@click.option("-o", "--output", required=True, type=OutputPath(), help="Directory for model/ and curves.html.")
@dataclass_options(ContrastiveOptions)
@add_json_option
def finetune(bundle: Path, data: str, output: Path, options: ContrastiveOptions, as_json: bool) -> None:
    """Train the dual encoder BUNDLE on DATA, pictures with captions.

    BUNDLE is by `vision import` of a CLIPModel or SiglipModel, or an embedding model's by `lm import`, which gets a new
    image tower. DATA is the path or URI of a CSV, JSON lines or Parquet file with image (a path relative to the file)
    and caption, of a folder with such a file named metadata or train, or of a folder with a folder of images for each
    class; or drawings: drawn pictures.
    """
    from kfp_mindspore.evaluation.curves import render_curves
    from kfp_mindspore.vision import training

    check_directory(output, [bundle, data])
    check_page(output / "curves.html", [data])
    result = training.finetune(bundle, data, output / "model", options, verbose=not as_json)
    write_text(output / "curves.html", render_curves("Contrastive training", {"training": result.history}))
    if as_json:
        print_json({"bundle": str(output / "model"), **result.to_dict()})
        return
    click.echo(
        f"{output}: {result.examples} pairs, {result.held_out} held out: accuracy {result.accuracy:.3f}, recall at 5 "
        f"{result.recall_at_5:.3f} after epoch {result.best_epoch}, {result.seconds:.0f} s"
    )


def _report(output: Path, difference: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(output), "difference": difference})
        return
    click.echo(f"{output}: verified, graphs differ from the networks by {difference:.1e} of the largest output")
