"""`kfp-mindspore vision`: models of images, and of images with texts."""

from __future__ import annotations

from pathlib import Path

import click

from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json, print_table
from kfp_mindspore.files import write_text
from kfp_mindspore.outputs import check_directory, check_page
from kfp_mindspore.vision.index_options import IndexOptions
from kfp_mindspore.vision.options import ContrastiveOptions

_MODEL = click.option(
    "--model", required=True, type=click.Path(path_type=Path), help="Bundle by `vision import` of a dual encoder."
)
_OUTPUT = click.option(
    "-o", "--output", required=True, type=OutputPath(), help="Bundle directory; replaced when it exists."
)


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore vision import ./clip-vit-base-patch32 -o clip")
def vision() -> None:
    """Import, train and use models of images and words, and search for pictures."""


@vision.command("import", epilog="Example: kfp-mindspore vision import ./clip-vit-base-patch32 -o clip")
@click.argument("source")
@_OUTPUT
@add_json_option
def import_command(source: str, output: Path, as_json: bool) -> None:
    """Write the model SOURCE as a bundle that `serve` serves.

    SOURCE is the path or URI of a Hugging Face directory with a CLIPModel, SiglipModel (also SigLIP 2 with a fixed
    resolution), ViTForImageClassification, Dinov2Model, Dinov2ForImageClassification or YolosForObjectDetection.
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


@vision.command(epilog="Example: kfp-mindspore vision index photos --model clip -o photos.parquet")
@click.argument("source")
@_MODEL
@click.option("-o", "--output", required=True, type=OutputPath(), help="Parquet file; an earlier index is replaced.")
@click.option("--captions", help="Path or URI of JSON lines with image, a name in SOURCE, and caption: for recall.")
@click.option("--report", type=OutputPath(), help="HTML page to write.")
@dataclass_options(IndexOptions, only=("max_pictures", "strict"))
@add_json_option
def index(
    source: str,
    model: Path,
    output: Path,
    captions: str | None,
    report: Path | None,
    options: IndexOptions,
    as_json: bool,
) -> None:
    """Embed the pictures of SOURCE for `vision search`, and write their names and vectors.

    SOURCE is a folder of PNG and JPEG files, also in folders, its URI, or a file *.txt with a path or URI a line. With
    --captions, captions are searched for by the model and, as a baseline, by words.
    """
    from kfp_mindspore.vision import search

    search.check_index_file(output, [source, model, captions])
    if report is not None:
        check_page(report, [source, model, captions, output])
    encoder = search.PictureEncoder(model)
    found = search.index_pictures(source, encoder, options)
    evaluation = search.evaluate_captions(found, encoder, captions) if captions else None
    found.write(output)
    if report is not None:
        examples = evaluation.examples if evaluation else ()
        write_text(report, search.render_page(f"Pictures of {source}", examples, evaluation, found.skipped))
    if as_json:
        scores = evaluation.scores if evaluation else {}
        print_json({"index": str(output), "pictures": len(found.ids), "skipped": dict(found.skipped), "scores": scores})
        return
    for name, reason in found.skipped.items():
        click.echo(f"left out: {name}: {reason}", err=True)
    click.echo(f"{output}: {len(found.ids)} pictures, {len(found.skipped)} left out")
    if evaluation is not None:
        for metric in evaluation.scores["model"]:
            values = ", ".join(f"{which} {scores[metric]:.4g}" for which, scores in evaluation.scores.items())
            click.echo(f"{metric}: {values}")


@vision.command(epilog='Example: kfp-mindspore vision search photos.parquet "two cats" --model clip --html found.html')
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("text", default="")
@_MODEL
@click.option("--picture", type=click.Path(path_type=Path), help="PNG or JPEG file to search by, instead of TEXT.")
@click.option("--count", default=5, show_default=True, type=click.IntRange(1, 100), help="How many to find.")
@click.option("--html", type=OutputPath(), help="HTML page to write, which shows the pictures found.")
@add_json_option
def search(
    index: Path, text: str, model: Path, picture: Path | None, count: int, html: Path | None, as_json: bool
) -> None:
    """Search an INDEX by `vision index` for the pictures most similar to TEXT or to --picture."""
    from kfp_mindspore.vision.search import PictureEncoder, PictureIndex, search_pictures

    if html is not None:
        check_page(html, [index, model, picture])
    opened = PictureIndex.read(index)
    found = search_pictures(opened, PictureEncoder(model), text=text, picture=picture, count=count)
    if html is not None:
        write_text(html, found.render())
    if as_json:
        print_json(found.to_dict())
        return
    print_table([{"score": f"{score:.4f}", "id": name} for name, score in found.matches], ["score", "id"])


def _report(output: Path, difference: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"bundle": str(output), "difference": difference})
        return
    click.echo(f"{output}: verified, graphs differ from the networks by {difference:.1e} of the largest output")
