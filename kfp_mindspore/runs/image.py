"""Sets the image that a compiled pipeline's steps run in."""

from __future__ import annotations

import copy
from typing import Any

from kfp_mindspore.errors import UserError
from kfp_mindspore.runs.spec import PipelineSpec
from kfp_mindspore.settings import PLACEHOLDER_PREFIX


def set_image(spec: PipelineSpec, image: str, *, placeholder: str = "") -> PipelineSpec:
    """Return a copy of a compiled pipeline whose placeholder images are replaced.

    Replaced are the images of steps and string constants that equal a placeholder, such as the image of a job's pods.

    Args:
        spec: A compiled pipeline; unchanged.
        image: The real image, best by digest (`registry/name@sha256:…`).
        placeholder: The image to replace; by default every one that starts with `kfp-mindspore.invalid/`.

    Raises:
        UserError: `image` is empty or has white space in it.
    """
    if not image or any(character.isspace() for character in image):
        raise UserError(f"image: must be the name of an image, got {image!r}")
    changed = copy.deepcopy(spec)
    _replace(changed, image, placeholder)
    return changed


def list_placeholders(spec: PipelineSpec) -> list[str]:
    """Return the placeholder images that a compiled pipeline still holds, sorted."""
    found: set[str] = set()
    stack: list[Any] = [spec]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, str) and _is_placeholder(value, ""):
            found.add(value)
    return sorted(found)


def _is_placeholder(value: str, placeholder: str) -> bool:
    return value == placeholder if placeholder else value.startswith(PLACEHOLDER_PREFIX) and "\n" not in value


def _replace(value: Any, image: str, placeholder: str) -> None:
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        if isinstance(entry, str):
            if _is_placeholder(entry, placeholder):
                value[key] = image
        elif isinstance(entry, (dict, list)):
            _replace(entry, image, placeholder)
