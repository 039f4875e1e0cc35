"""Initial weights of a run: a checkpoint's, a bundle's or any script's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from kfp_mindspore.errors import KfpMindSporeError, join_names
from kfp_mindspore.mindir.encryption import read_model_key
from kfp_mindspore.mindir.parameters import load_matching, read_parameters
from kfp_mindspore.stores.artifact_store import StoreError
from kfp_mindspore.stores.config import open_source
from kfp_mindspore.training.config import TrainingConfig

_HINT = "Parameters are matched by name and shape; initial_strict=False keeps the network's own values of the others."


def load_initial(network: Any, config: TrainingConfig) -> None:
    """Set a network's parameters to the values at `config.initial`.

    Raises:
        UserError: There are no parameters, or they do not fit; the message lists names and shapes both ways.
        KfpMindSporeError: The object store cannot be reached or denies the request.
    """
    location = str(config.initial)
    with tempfile.TemporaryDirectory(prefix="kfp-mindspore-initial-") as scratch:
        stored = read_parameters(_fetch(location, Path(scratch)), read_model_key(None, os.environ))
    mismatch = load_matching(network, stored, location, strict=config.initial_strict, hint=_HINT)
    if config.verbose:
        own = [*mismatch.missing, *mismatch.unfit]
        kept = f"; the network's own values of {join_names(own)}" if own else ""
        print(f"starting from {location}: {mismatch.matched} parameters{kept}", flush=True)


def _fetch(location: str, scratch: Path) -> Path:
    """Return a local path, downloaded where the location is a URI."""
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        return Path(rest if separator else location)
    access = open_source(location)
    target = scratch / location.rstrip("/").rpartition("/")[2]
    try:
        access.store.download(location.rstrip("/"), target)
    except StoreError as error:
        raise KfpMindSporeError(f"initial: {error}", hint=access.hint) from error
    return target
