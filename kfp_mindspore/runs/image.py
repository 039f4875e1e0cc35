"""Images of a compiled pipeline."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.runs.spec import PipelineSpec
from kfp_mindspore.settings import PLACEHOLDER_PREFIX


def set_image(spec: PipelineSpec, image: str) -> PipelineSpec:
    """Return a copy of a compiled pipeline with its placeholder images replaced.

    String constants are replaced too, such as the image of a job's pods.

    Args:
        spec: A compiled pipeline; not modified.
        image: The image, preferably by digest (`registry/name@sha256:…`).

    Raises:
        UserError: `image` is empty or contains white space.
    """
    if not image or any(character.isspace() for character in image):
        raise UserError(f"image: must be the name of an image, got {image!r}")
    changed = copy.deepcopy(spec)
    _map_strings(changed, lambda text: image if _is_placeholder(text) else text)
    return changed


def list_placeholders(spec: PipelineSpec) -> list[str]:
    """Return the placeholder images of a compiled pipeline, sorted."""
    placeholders: set[str] = set()

    def collect(text: str) -> str:
        if _is_placeholder(text):
            placeholders.add(text)
        return text

    _map_strings(spec, collect)
    return sorted(placeholders)


def _is_placeholder(value: str) -> bool:
    return value.startswith(PLACEHOLDER_PREFIX) and "\n" not in value


def _map_strings(value: Any, function: Callable[[str], str]) -> None:
    for key, entry in list(value.items() if isinstance(value, dict) else enumerate(value)):
        if isinstance(entry, str):
            value[key] = function(entry)
        elif isinstance(entry, (dict, list)):
            _map_strings(entry, function)
