"""Image registries by their HTTP API: read and push manifests and blobs."""

from __future__ import annotations

import importlib.util

from kfp_mindspore.errors import MissingExtraError

for _library in ("docker", "requests"):
    if importlib.util.find_spec(_library) is None:
        raise MissingExtraError(_library, "images")
