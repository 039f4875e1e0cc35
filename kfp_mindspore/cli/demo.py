"""`kfp-mindspore demo`: the whole lifecycle on real data."""

from __future__ import annotations

import click

from kfp_mindspore.cli.output import add_json_option, print_json

PIPELINE = "digits_lifecycle"


@click.command(epilog="\b\nExamples:\n  kfp-mindspore demo\n  kfp-mindspore demo --keep")
@click.option("--keep", is_flag=True, help="Let the service outlive the demo; stop it with `service stop`.")
@click.option("--no-cache", is_flag=True, help="Run every step, also those that ran before.")
@click.option("-v", "--verbose", is_flag=True, help="Print everything that the steps print.")
@add_json_option
def demo(keep: bool, no_cache: bool, verbose: bool, as_json: bool) -> None:
    """Train LeNet-5 on 1,797 images of digits, export, evaluate, gate, serve it and ask it over HTTP.

    All on this machine, in half a minute to a minute: MindSpore trains, KServe's model server serves, Kubeflow
    Pipelines' local runner runs the steps.
    """
    from kfp_mindspore.cli.run import print_summary, run_and_show

    result = run_and_show(PIPELINE, keep=keep, cache=not no_cache, verbose=verbose, as_json=as_json)
    if not result.steps:
        result.check()
    if as_json:
        print_json(result.to_dict())
    else:
        print_summary(result)
    result.check()
    if keep and not as_json:
        service = result.get_output("name")
        click.echo(f"The service runs on. Stop it with: kfp-mindspore service stop {service}")
