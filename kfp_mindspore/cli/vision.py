"""`kfp-mindspore vision`: models of images, and of images with texts."""

from __future__ import annotations

from pathlib import Path

import click

from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json

_OUTPUT = click.option(
    "-o", "--output", required=True, type=OutputPath(), help="Bundle directory; replaced when it exists."
)


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore vision import ./clip-vit-base-patch32 -o clip")
def vision() -> None:
    """Import image models, and classify by words."""


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


def _report(output: Path, difference: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(output), "difference": difference})
        return
    click.echo(f"{output}: verified, graphs differ from the networks by {difference:.1e} of the largest output")
