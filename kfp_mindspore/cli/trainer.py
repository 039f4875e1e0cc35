"""`kfp-mindspore trainer`: MindSpore in Kubeflow Trainer."""

from __future__ import annotations

import click

from kfp_mindspore.cli.shared.command import StrictGroup
from kfp_mindspore.cli.shared.dataclass_options import dataclass_options
from kfp_mindspore.cli.shared.output import add_json_option, print_json_list
from kfp_mindspore.msjob.api.names import DEFAULT_GRACE_SECONDS
from kfp_mindspore.msjob.build import JobOptions
from kfp_mindspore.msjob.training_runtime import (
    DISTRIBUTED,
    RUNTIME_OPTIONS,
    SINGLE,
    build_node_limit,
    build_training_runtime,
)
from kfp_mindspore.settings import IMAGE_VARIABLE


@click.group(cls=StrictGroup, context_settings={"help_option_names": ["-h", "--help"]})
def trainer() -> None:
    """Train MindSpore with Kubeflow's SDK and Kubeflow Trainer."""


@trainer.command(
    epilog="Example: kfp-mindspore trainer runtime --image registry.example.com/train@sha256:… | kubectl apply -f -"
)
@click.option("--name", type=click.Choice([DISTRIBUTED, SINGLE]), help="Write this one only. [default: both]")
@dataclass_options(
    JobOptions,
    only=RUNTIME_OPTIONS,
    names={"backoff_limit": "--max-restarts"},
    settings={
        "image": {"envvar": IMAGE_VARIABLE, "help": "Image with kfp-mindspore, by digest. [default: a placeholder]"}
    },
)
@click.option(
    "--checkpoints", default="", help="Where fit writes checkpoints: claim:NAME, or a URI such as s3://bucket/path."
)
@click.option(
    "--grace-seconds",
    type=click.IntRange(min=0),
    default=DEFAULT_GRACE_SECONDS,
    show_default=True,
    help="Seconds between SIGTERM, at which fit writes a checkpoint, and SIGKILL.",
)
@add_json_option
def runtime(name: str | None, options: JobOptions, checkpoints: str, grace_seconds: int, as_json: bool) -> None:
    """Write the runtimes' manifests: mindspore-distributed, and mindspore, with a policy that limits it to one node."""
    from kfp_mindspore.operator.install.objects import dump_documents

    manifests = [
        build_training_runtime(item, options, checkpoints=checkpoints, grace_seconds=grace_seconds)
        for item in ([name] if name else [DISTRIBUTED, SINGLE])
    ]
    if name != DISTRIBUTED:
        manifests += build_node_limit()
    if as_json:
        print_json_list(manifests)
    else:
        click.echo(dump_documents(manifests), nl=False)
    if "@sha256:" not in options.image:
        click.echo("image: has no digest; set --image REGISTRY/NAME@sha256:…", err=True)
