"""The Ray release that this package is written for."""

from __future__ import annotations

from importlib import metadata

from kfp_mindspore.errors import MissingExtraError, UserError

SUPPORTED = "2.60"


def check_ray() -> None:
    """Check the installed Ray without importing it.

    Raises:
        MissingExtraError: There is none.
        UserError: It is another release, whose interfaces differ.
    """
    try:
        found = metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise MissingExtraError("ray", "ray") from None
    if found.split(".")[:2] != SUPPORTED.split("."):
        raise UserError(
            f"ray {found} is installed, kfp_mindspore.ray needs {SUPPORTED}",
            hint="Install kfp-mindspore[ray], here and in the image of Ray's nodes.",
        )
