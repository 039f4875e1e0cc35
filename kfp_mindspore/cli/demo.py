"""`kfp-mindspore demo`: run the digits lifecycle."""

from __future__ import annotations

import click

from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.output import add_json_option

PIPELINE = "digits_lifecycle"


@click.command(cls=StrictCommand, epilog="\b\nExamples:\n  kfp-mindspore demo\n  kfp-mindspore demo --keep")
@click.option("--keep", is_flag=True, help="Keep the service after the demo; stop it with `service stop`.")
@click.option("--no-cache", is_flag=True, help="Run all steps, including cached ones.")
@click.option("-v", "--verbose", is_flag=True, help="Print the output of the steps.")
@add_json_option
def demo(keep: bool, no_cache: bool, verbose: bool, as_json: bool) -> None:
    """Train LeNet-5 on 1,797 images of digits, export, evaluate and serve it, and request predictions over HTTP.

    Runs on this machine in 30 to 60 seconds: MindSpore trains, KServe's model server serves, and the local runner of
    Kubeflow Pipelines runs the steps.
    """
    from kfp_mindspore.cli.run import print_outcome, print_service, run_and_show

    result = run_and_show(PIPELINE, keep=keep, cache=not no_cache, verbose=verbose, as_json=as_json)
    print_outcome(result, as_json=as_json)
    if as_json:
        return
    print_service(result, keep=keep)
    click.echo("Next: kfp-mindspore init my-project && cd my-project && kfp-mindspore run pipeline.py")
