"""`kfp-mindspore devices`: what MindSpore can use on this machine."""

from __future__ import annotations

import dataclasses

import click

from kfp_mindspore.cli.shared.command import StrictCommand
from kfp_mindspore.cli.shared.output import add_json_option, print_json_list, print_table
from kfp_mindspore.settings import AUTO, DEVICES

_MISSING_EXIT_CODE = 1


@click.command(cls=StrictCommand, epilog="Example: kfp-mindspore devices --require GPU && python train.py")
@click.option(
    "--require",
    type=click.Choice([name for name in DEVICES if name != AUTO]),
    help="Exit with 1 unless MindSpore can use this one.",
)
@add_json_option
def devices(require: str | None, as_json: bool) -> None:
    """Show which devices MindSpore can use here, and why not the others.

    Libraries of CUDA and CANN are looked for as the loader would, with LD_LIBRARY_PATH; none is loaded on a machine
    without a device.
    """
    from kfp_mindspore.mindir.devices import inspect_device
    from kfp_mindspore.mindir.environment import import_mindspore

    import_mindspore()
    found = [inspect_device(name) for name in DEVICES if name != AUTO]
    if as_json:
        print_json_list([state.to_dict() for state in found])
    else:
        rows = [{**dataclasses.asdict(state), "reason": state.reason or "usable"} for state in found]
        print_table(rows, ("device", "count", "driver", "reason"))
    if require is not None and not next(state.count for state in found if state.device == require):
        raise click.exceptions.Exit(_MISSING_EXIT_CODE)
