"""Initial weights of a run: a checkpoint's, a bundle's or any script's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, NotFoundError, UserError, join_names
from kfp_mindspore.formats.checkpoint import DESCRIPTION, Checkpoint
from kfp_mindspore.mindir.graph.encryption import read_model_key
from kfp_mindspore.mindir.parameters.files import load_matching, read_parameters
from kfp_mindspore.mindir.parameters.widths import get_spec
from kfp_mindspore.stores.artifact_store import StoreError
from kfp_mindspore.stores.config import open_source
from kfp_mindspore.training.config import TrainingConfig

_HINT = (
    "Parameters are matched by name and shape. For a new head name its parameters: initial_optional=('head.*',); "
    "initial_strict=False keeps the network's own values of all that do not fit."
)


def load_initial(network: Any, config: TrainingConfig) -> None:
    """Set a network's parameters to the values at `config.initial`.

    Raises:
        NotFoundError: There is no such file or object.
        UserError: There are no parameters, or they do not fit; the message lists names and shapes both ways.
        KfpMindSporeError: The object store cannot be reached or denies the request.
    """
    location = str(config.initial)
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-initial-") as scratch:
        path = fetch_initial(location, Path(scratch))
        try:
            stored = read_parameters(path, read_model_key(None, os.environ))
        except UserError as error:
            # A download's own path means nothing to the user.
            raise type(error)(error.message.replace(str(path), location), hint=error.hint) from error
        is_cut = (path / DESCRIPTION).is_file() and bool(Checkpoint.read_description(path).network.cut)
    hint = _HINT
    if is_cut and get_spec(network) is None:
        hint = f"It is compressed: build the network by kfp_mindspore.mindir.load_network({location!r})."
    optional = config.initial_optional if config.initial_strict else ("*",)
    mismatch = load_matching(network, stored, location, optional=optional, hint=hint)
    if config.verbose:
        own = [*mismatch.missing, *mismatch.unfit]
        kept = f"; the network's own values of {join_names(own)}" if own else ""
        print(f"starting from {location}: {mismatch.matched} parameters{kept}", flush=True)


def fetch_initial(location: str, scratch: Path) -> Path:
    """Return a local path, downloaded where the location is a URI.

    Args:
        location: Path or URI.
        scratch: Where downloads go.

    Raises:
        NotFoundError: There is no such object.
        KfpMindSporeError: The object store cannot be reached or denies the request.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return Path(rest if separator else location)
    access = open_source(location)
    target = scratch / location.rstrip("/").rpartition("/")[2]
    try:
        access.store.download(location.rstrip("/"), target)
    except StoreError as error:
        if error.kind == "missing":
            raise NotFoundError(f"initial: {error}") from error
        raise KfpMindSporeError(f"initial: {error}", hint=access.hint) from error
    return target
